package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/platform/httpd"
)

// The operations on leases are called thousands of times a second and need the
// connection: a long poll moves its deadline, and a grant must know whether it
// was written. So they have handlers of their own. huma describes them, and
// reads the requests that plain.go leaves to it.

// exchange is one call of such an operation.
type exchange struct {
	w         http.ResponseWriter
	r         *http.Request
	principal token.Principal
}

// answer is what the call is answered with.
type answer struct {
	status int
	// secret is a lease's, for the header Lease-Secret; "" for none.
	secret string
	// private is set for a body that holds credentials.
	private bool
	body    any
}

// slot takes what huma decoded.
type slot[I any] struct {
	in     I
	filled bool
}

type slotKey struct{}

// registerHot adds an operation whose requests are read by plain where they are,
// and by huma otherwise. handle gets the request's own context; it answers by
// [server.reply], or returns an error.
func registerHot[I, O any](s *server, op operation, read func(*http.Request, []byte, *I) bool, handle func(context.Context, *exchange, *I) error) {
	if op.replayed {
		defer s.describeReplay(op)
	}
	huma.Register(s.described, s.describeOperation(op, reflect.TypeFor[I](), s.strict), func(ctx context.Context, in *I) (*O, error) {
		if to, ok := ctx.Value(slotKey{}).(*slot[I]); ok {
			to.in, to.filled = *in, true
		}
		return nil, nil
	})
	both{s}.HandleFunc(op.method+" "+op.path, func(w http.ResponseWriter, r *http.Request) {
		p, ok := s.enter(w, r, op.role)
		if !ok {
			return
		}
		var in I
		if !s.readPlain(r, func(body []byte) bool { return read(r, body, &in) }) {
			in = *new(I) // it may have been read in part
			if !readAny(s, w, r, &in) {
				return
			}
		}
		if err := handle(r.Context(), &exchange{w, r, p}, &in); err != nil {
			httpd.WriteError(w, r, s.opts.Log, dressed(err))
		}
	})
}

// describeReplay says that an operation answers a repeated request with 200.
func (s *server) describeReplay(op operation) {
	responses := s.api.OpenAPI().Paths[op.path].Post.Responses
	again := *responses[strconv.Itoa(op.status)]
	again.Description = "The request was answered before: this is the same lease, with its secret."
	responses["200"] = &again
}

// enter lets requests of at least the role through; others are answered.
func (s *server) enter(w http.ResponseWriter, r *http.Request, role token.Role) (token.Principal, bool) {
	p, err := s.gate.admit(r)
	if err == nil {
		httpd.SetAccount(r.Context(), p.Account)
		if p.Role.Allows(role) {
			return p, true
		}
		err = errRole(p, role)
	}
	s.refuse(w, r, err)
	return token.Principal{}, false
}

// readPlain reads the request by hand; false when it must be read by huma.
func (s *server) readPlain(r *http.Request, read func(body []byte) bool) bool {
	buf, _ := s.bodies.Get().(*[maxPlain]byte)
	if buf == nil {
		buf = new([maxPlain]byte)
	}
	body, ok := plainBody(r, buf)
	if ok && !read(body) {
		// The buffer is the next request's: what is read again is a copy.
		r.Body = rest{bytes.NewReader(bytes.Clone(body)), r.Body}
		ok = false
	}
	s.bodies.Put(buf)
	return ok
}

// readAny reads the request by huma; one that is wrong is answered.
func readAny[I any](s *server, w http.ResponseWriter, r *http.Request, in *I) bool {
	to := &slot[I]{}
	s.read.ServeHTTP(&untilFilled{w, &to.filled}, r.WithContext(context.WithValue(r.Context(), slotKey{}, to)))
	*in = to.in
	return to.filled
}

// untilFilled passes on what huma answers, unless it is that all is well.
type untilFilled struct {
	http.ResponseWriter
	filled *bool
}

func (w *untilFilled) WriteHeader(status int) {
	if !*w.filled {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap serves http.ResponseController.
func (w *untilFilled) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// reply answers. It returns an error when the answer did not even reach the
// network, so that the client cannot have it.
func (s *server) reply(x *exchange, a answer) error {
	buf, _ := s.answers.Get().(*bytes.Buffer)
	if buf == nil {
		buf = new(bytes.Buffer)
	}
	defer s.answers.Put(buf)
	buf.Reset()
	e := json.NewEncoder(buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(a.body); err != nil {
		return fault.Errorf(fault.Permanent, "api: encode an answer: %w", err)
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(buf.Len()))
	if a.secret != "" {
		h.Set("Lease-Secret", a.secret)
	}
	if a.secret != "" || a.private {
		h.Set("Cache-Control", "no-store")
	}
	x.w.WriteHeader(a.status)
	_, err := x.w.Write(buf.Bytes())
	if err == nil && a.secret != "" {
		err = http.NewResponseController(x.w).Flush()
	}
	if err != nil {
		return fault.Errorf(fault.Transient, "api: write an answer: %w", err)
	}
	return nil
}

// buffers are pools of what each hot request needs for a moment.
type buffers struct {
	bodies  sync.Pool // of *[maxPlain]byte
	answers sync.Pool // of *bytes.Buffer
}
