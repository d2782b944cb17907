package httpd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
)

// note is what the layers below tell the request log. Handlers may run on a
// goroutine of their own, hence the lock.
type note struct {
	id string

	mu      sync.Mutex
	route   string
	account string
	quiet   bool
}

type noteKey struct{}

func noteOf(ctx context.Context) *note {
	n, _ := ctx.Value(noteKey{}).(*note)
	return n
}

// RequestID is the id of the request that ctx belongs to: 16 hex digits, also
// sent as X-Request-Id; empty outside of a [Server].
func RequestID(ctx context.Context) string {
	if n := noteOf(ctx); n != nil {
		return n.id
	}
	return ""
}

// SetRoute tells the request log which route pattern answers, for handlers
// that route by themselves. Paths are not logged: they may hold anything.
func SetRoute(ctx context.Context, pattern string) {
	if n := noteOf(ctx); n != nil {
		n.mu.Lock()
		n.route = pattern
		n.mu.Unlock()
	}
}

// SetAccount tells the request log whose request it is.
func SetAccount(ctx context.Context, account string) {
	if n := noteOf(ctx); n != nil {
		n.mu.Lock()
		n.account = account
		n.mu.Unlock()
	}
}

// setQuiet keeps a request that is made every few seconds by machines out of
// the log at level info.
func setQuiet(ctx context.Context) {
	if n := noteOf(ctx); n != nil {
		n.mu.Lock()
		n.quiet = true
		n.mu.Unlock()
	}
}

// Recorder passes a response on and remembers what was sent.
type Recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
	cut    bool
}

// Record wraps w; the wrapper keeps http.ResponseController working.
func Record(w http.ResponseWriter) *Recorder { return &Recorder{ResponseWriter: w} }

// Status is the status code sent; 200 when the handler wrote none.
func (r *Recorder) Status() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}

// Started reports whether the header was sent.
func (r *Recorder) Started() bool { return r.status != 0 }

// WriteHeader remembers the final status; 1xx ones are only passed on.
func (r *Recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *Recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// Unwrap serves http.ResponseController.
func (r *Recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// wrap puts the handler behind what every request passes.
func wrap(o Options) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		n := &note{id: newID()}
		r = r.WithContext(context.WithValue(r.Context(), noteKey{}, n))
		rec := Record(w)
		h := rec.Header()
		h.Set("X-Request-Id", n.id)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		// Handlers of what may be cached say so themselves.
		h.Set("Cache-Control", "no-store")

		defer func() { logRequest(o.Log, r, rec, n, time.Since(begin)) }()
		defer recoverPanic(o.Log, rec, r)
		if r.ContentLength > o.MaxBodyBytes {
			// The body is not read, so the connection cannot be used again.
			h.Set("Connection", "close")
			WriteError(rec, r, o.Log, WithStatus(fault.WithCode(fault.Errorf(fault.Invalid,
				"the body is larger than %d bytes", o.MaxBodyBytes), tooLarge), http.StatusRequestEntityTooLarge))
		} else {
			// w, not rec: the server's own writer closes the connection when
			// the limit is hit.
			r.Body = http.MaxBytesReader(w, r.Body, o.MaxBodyBytes)
			o.Handler.ServeHTTP(rec, r)
		}
	})
}

// recoverPanic answers a handler's panic with a problem document. When part of
// an answer was sent already, the connection is cut, so that no client takes
// the part for the whole.
func recoverPanic(log *slog.Logger, rec *Recorder, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		rec.cut = true
		panic(v)
	}
	log.Error("handler panicked", "request", RequestID(r.Context()),
		"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if rec.Started() {
		rec.cut = true
		panic(http.ErrAbortHandler)
	}
	d := Problem(fault.New(fault.Permanent, "handler panicked"))
	d.RequestID = RequestID(r.Context())
	d.Write(rec)
}

func logRequest(log *slog.Logger, r *http.Request, rec *Recorder, n *note, took time.Duration) {
	n.mu.Lock()
	route, account, quiet := n.route, n.account, n.quiet
	n.mu.Unlock()
	if route == "" {
		route = r.Pattern
	}
	level := slog.LevelInfo
	if quiet {
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{
		slog.String("request", n.id),
		slog.String("method", KnownMethod(r.Method)),
		slog.String("route", route),
		slog.Int("status", rec.Status()),
		slog.Int64("bytes", rec.bytes),
		slog.Duration("duration", took),
		slog.String("remote", r.RemoteAddr),
	}
	if account != "" {
		attrs = append(attrs, slog.String("account", account))
	}
	if rec.cut {
		attrs = append(attrs, slog.Bool("cut", true))
	}
	log.LogAttrs(r.Context(), level, "request", attrs...)
}

// KnownMethod is m, or "other": it bounds what a client can put into logs and metric labels.
func KnownMethod(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut,
		http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}

func newID() string {
	var b [8]byte
	// crypto/rand.Read never fails.
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
