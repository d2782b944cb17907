package proxyprovider

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/sweep"
)

const (
	// MaxAbandoned is how many instances one provider's object can hold, and
	// maxAbandonedBytes how large they may be as JSON: with 500 rows of hosts
	// beside them they must fit into the 1.5 MiB that are stored at most.
	MaxAbandoned      = 2000
	maxAbandonedBytes = 700 << 10
	// ownersPage is how many Proxies one request lists, and objectsPage how many
	// ProxyProviders, each of which may be large.
	ownersPage  = 500
	objectsPage = 50
	// maxPages bounds a listing that never ends.
	maxPages = 2000
	// listTries bounds how often a listing begins anew, because its place in
	// the list was forgotten by the server.
	listTries = 3
	// maxField bounds short texts that others wrote.
	maxField = 128
)

// Owners implements sweep.Book: the UIDs of all Proxies, also of those that are
// being deleted, as of one moment. Only their metadata is read, uncached and in
// pages. A list that cannot be read to its end is an error.
func (r *Reconciler) Owners(ctx context.Context) (map[string]bool, error) {
	var err error
	for range listTries {
		var uids map[string]bool
		if uids, err = r.owners(ctx); err == nil {
			return uids, nil
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			break
		}
	}
	return nil, unreadable("the Proxies cannot be listed", err)
}

func (r *Reconciler) owners(ctx context.Context) (map[string]bool, error) {
	uids := map[string]bool{}
	next := ""
	for range maxPages {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ProxyList"))
		if err := r.o.Reader.List(ctx, page, client.Limit(ownersPage), client.Continue(next)); err != nil {
			return nil, err
		}
		for i := range page.Items {
			uids[string(page.Items[i].UID)] = true
		}
		if next = page.Continue; next == "" {
			return uids, nil
		}
	}
	return nil, fmt.Errorf("the list does not end after %d pages of %d", maxPages, ownersPage)
}

// unreadable classes an error of the Kubernetes API.
func unreadable(what string, err error) error {
	class := fault.Unavailable
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		class = fault.Denied
	}
	return fault.Errorf(class, "%s: %w", what, err)
}

// Page implements sweep.Book. A provider without an object, or with one that
// another operator keeps, has a page without rows of its own; UIDs that an
// annotation names and that are not written down are left out. All objects are
// read, as of one moment: an instance may be written down with a provider that
// had its host before.
func (r *Reconciler) Page(ctx context.Context, providerName string) (sweep.Page, error) {
	var err error
	for range listTries {
		var page sweep.Page
		if page, err = r.page(ctx, providerName); err == nil {
			return page, nil
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			break
		}
	}
	return sweep.Page{}, unreadable("the ProxyProviders cannot be listed", err)
}

func (r *Reconciler) page(ctx context.Context, name string) (page sweep.Page, err error) {
	next := ""
	for range maxPages {
		list := &v1alpha1.ProxyProviderList{}
		if err := r.o.Reader.List(ctx, list, client.Limit(objectsPage), client.Continue(next)); err != nil {
			return page, err
		}
		for i := range list.Items {
			r.read(&list.Items[i], name, &page)
		}
		if next = list.Continue; next == "" {
			return page, nil
		}
	}
	return page, fmt.Errorf("the list does not end after %d pages of %d", maxPages, objectsPage)
}

// read adds what an object says to the page of a provider. What another
// operator wrote down is kept as well, and what a person asks of that one is
// not asked of us.
func (r *Reconciler) read(o *v1alpha1.ProxyProvider, name string, page *sweep.Page) {
	if o.Name != name || r.foreign(o) {
		for _, a := range o.Status.Abandoned {
			if page.Elsewhere == nil {
				page.Elsewhere = map[string]string{}
			}
			page.Elsewhere[a.UID] = o.Name
		}
		return
	}
	page.Release = strings.TrimSpace(o.Annotations[v1alpha1.ReleaseSweepAnnotation])
	page.Abandoned = make(map[string]sweep.AbandonedInstance, len(o.Status.Abandoned))
	for _, a := range o.Status.Abandoned {
		page.Abandoned[a.UID] = sweep.AbandonedInstance{ProviderID: a.ProviderID, Host: a.Host}
	}
	for _, uid := range namedUIDs(o) {
		if _, there := page.Abandoned[uid]; there {
			page.Remove = append(page.Remove, uid)
		}
	}
}

// namedUIDs are the UIDs of the annotation remove-abandoned, each once.
func namedUIDs(o *v1alpha1.ProxyProvider) (uids []string) {
	seen := map[string]bool{}
	for uid := range strings.SplitSeq(o.Annotations[v1alpha1.RemoveAbandonedAnnotation], ",") {
		if uid = strings.TrimSpace(uid); uid != "" && !seen[uid] && len(uids) < MaxAbandoned {
			seen[uid] = true
			uids = append(uids, uid)
		}
	}
	return uids
}

// Strike implements sweep.Book.
func (r *Reconciler) Strike(ctx context.Context, providerName string, uids []string) error {
	out := make(map[string]bool, len(uids))
	for _, uid := range uids {
		out[uid] = true
	}
	err := r.rewrite(ctx, providerName, &entry{apply: func(list instances) (instances, error) {
		return slices.DeleteFunc(list, func(a v1alpha1.AbandonedInstance) bool { return out[a.UID] }), nil
	}})
	if err != nil {
		return fmt.Errorf("striking abandoned instances off ProxyProvider %s: %w", providerName, err)
	}
	return nil
}

// Abandon writes down an instance whose Proxy is about to go without it. It is
// there when nil is returned; writing it again is fine, and fills in what was
// not known before. When the object is full the error is of class Quota and
// says what to do. An object that is missing is made, also for a provider that
// the providers file does not have. One that another operator keeps is an error
// of class Conflict.
func (r *Reconciler) Abandon(ctx context.Context, providerName string, a v1alpha1.AbandonedInstance) error {
	if a.UID == "" || a.Proxy == "" {
		return fault.New(fault.Invalid, "an abandoned instance needs the UID and the name of its Proxy")
	}
	a.Reason, a.Host = clip(a.Reason, maxField), strings.ToValidUTF8(a.Host, "�")
	a.ProviderID = strings.ToValidUTF8(a.ProviderID, "�")
	if a.Time.IsZero() {
		a.Time = metav1.Now()
	}
	a.Time = seconds(a.Time)
	err := r.rewrite(ctx, providerName, &entry{adds: true, apply: func(list instances) (instances, error) {
		return r.withInstance(list, providerName, a)
	}})
	if err != nil {
		return fmt.Errorf("writing the abandoned instance of Proxy %s down in ProxyProvider %s: %w", a.Proxy, providerName, err)
	}
	return nil
}

type instances = []v1alpha1.AbandonedInstance

// withInstance returns the list with a in it.
func (r *Reconciler) withInstance(list instances, name string, a v1alpha1.AbandonedInstance) (instances, error) {
	for i := range list {
		if list[i].UID != a.UID {
			continue
		}
		if list[i].ProviderID == "" {
			list[i].ProviderID = a.ProviderID
		}
		if list[i].Host == "" {
			list[i].Host = a.Host
		}
		return list, nil
	}
	longer := append(list[:len(list):len(list)], a)
	if len(longer) > MaxAbandoned || bytesOf(longer) > maxAbandonedBytes {
		return list, fault.Errorf(fault.Quota, "it holds %d abandoned instances already, and no more fit: %s", len(list), r.makeRoom(name, list))
	}
	return longer, nil
}

// makeRoom says how a person makes room in an object that is full.
func (r *Reconciler) makeRoom(name string, list instances) string {
	if r.state(name) == nil {
		uid := "UID"
		if len(list) > 0 {
			uid = list[0].UID
		}
		return notSwept + ": " + putBackOrStrike(name, 0, uid)
	}
	return fmt.Sprintf("have the sweep remove some, or strike those that were removed by hand (kubectl annotate proxyprovider %s %s=UID,UID --overwrite)",
		name, v1alpha1.RemoveAbandonedAnnotation)
}

// bytesOf is how large a value is as JSON.
func bytesOf(v any) int {
	data, err := json.Marshal(v)
	if err != nil {
		return maxAbandonedBytes + 1 // plain structs: it does not fail
	}
	return len(data)
}
