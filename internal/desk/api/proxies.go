package api

import (
	"context"
	"encoding/base64"
	"strings"

	"fleetdesk/client"
)

// Proxies shows the proxies of a product that has them. It is neutral: the
// product translates its own objects. Errors carry a class; their text is
// shown to clients for NotFound and Invalid.
type Proxies interface {
	// List returns proxies ordered by namespace, then name (bytewise), from
	// the first behind q.After on: at most q.Limit of them, and whether more
	// follow. A selector that does not parse is Invalid.
	List(ctx context.Context, q ProxyQuery) (ProxyPage, error)
	// Get returns one proxy, or NotFound.
	Get(ctx context.Context, namespace, name string) (client.Proxy, error)
}

// ProxyQuery selects proxies; an empty field does not narrow.
type ProxyQuery struct {
	// Namespace, Provider and Phase are exact.
	Namespace, Provider, Phase string
	// Selector is the text of a label selector, as kubectl -l takes it.
	Selector string
	// After is the last proxy of the page before; zero for the first page. It
	// may not exist any more.
	After ProxyName
	// Limit is 1 to 500.
	Limit int
}

// ProxyName names a proxy.
type ProxyName struct {
	Namespace, Name string
}

// Compare orders as pages do: by namespace, then name. (Comparing the joined
// text would not: "-" sorts before "/".)
func (n ProxyName) Compare(o ProxyName) int {
	if c := strings.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, o.Name)
}

// ProxyPage is one page.
type ProxyPage struct {
	// Items are ordered as [Proxies] says.
	Items []client.Proxy
	// More is whether others follow the last item.
	More bool
}

type listProxiesInput struct {
	Namespace string `query:"namespace" maxLength:"253" doc:"Keep this namespace."`
	Selector  string `query:"selector" maxLength:"2048" doc:"Keep proxies whose labels match this label selector." example:"tier=eu,!old"`
	Provider  string `query:"provider" maxLength:"253" doc:"Keep proxies of this provider."`
	Phase     string `query:"phase" maxLength:"64" doc:"Keep proxies in this phase." example:"Ready"`
	Limit     int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"Size of the page."`
	Cursor    string `query:"cursor" maxLength:"1024" doc:"The field next of the page before."`
}

type listProxiesOutput struct{ Body client.ProxyList }

func (s *server) listProxies(ctx context.Context, in *listProxiesInput) (*listProxiesOutput, error) {
	after, err := decodeCursor(in.Cursor)
	if err != nil {
		return nil, err
	}
	page, err := s.opts.Proxies.List(ctx, ProxyQuery{
		Namespace: in.Namespace, Provider: in.Provider, Phase: in.Phase,
		Selector: in.Selector, After: after, Limit: in.Limit,
	})
	if err != nil {
		return nil, err
	}
	if len(page.Items) > in.Limit {
		page.Items, page.More = page.Items[:in.Limit], true
	}
	out := &listProxiesOutput{Body: client.ProxyList{Items: make([]client.Proxy, len(page.Items))}}
	for i, p := range page.Items {
		out.Body.Items[i] = onWire(p)
	}
	if n := len(page.Items); page.More && n > 0 {
		last := page.Items[n-1]
		out.Body.Next = encodeCursor(ProxyName{last.Namespace, last.Name})
	}
	return out, nil
}

type getProxyInput struct {
	Namespace string `path:"namespace" maxLength:"253" doc:"Namespace of the Proxy object."`
	Name      string `path:"name" maxLength:"253" doc:"Name of the Proxy object."`
}

type getProxyOutput struct{ Body client.Proxy }

func (s *server) getProxy(ctx context.Context, in *getProxyInput) (*getProxyOutput, error) {
	p, err := s.opts.Proxies.Get(ctx, in.Namespace, in.Name)
	if err != nil {
		return nil, err
	}
	return &getProxyOutput{Body: onWire(p)}, nil
}

// onWire gives a proxy the form that package client promises.
func onWire(p client.Proxy) client.Proxy {
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	if p.Conditions == nil {
		p.Conditions = []client.Condition{}
	}
	p.Created = p.Created.UTC().Truncate(1e9)
	return p
}

// A cursor is the name of the last proxy shown, not a position, so that pages
// neither skip nor repeat when proxies come and go. It is encoded so that
// nobody builds one by hand and relies on it.
func encodeCursor(n ProxyName) string {
	return base64.RawURLEncoding.EncodeToString([]byte(n.Namespace + "/" + n.Name))
}

func decodeCursor(cursor string) (ProxyName, error) {
	if cursor == "" {
		return ProxyName{}, nil
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	namespace, name, ok := strings.Cut(string(text), "/")
	if err != nil || !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return ProxyName{}, errCursor()
	}
	return ProxyName{namespace, name}, nil
}
