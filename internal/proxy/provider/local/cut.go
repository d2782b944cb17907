package local

import (
	"context"
	"io"
	"net/http"

	"github.com/elazarl/goproxy"
)

// cut is the error that ended a target's answer before its end, nil for a
// whole answer. goproxy drops that error, and net/http would then end the
// client's answer as if it were whole: half a page would count as a page.
type cut struct{ err error }

type cutKey struct{}

// withCut returns r with a place for its answer's cut.
func withCut(r *http.Request) (*http.Request, *cut) {
	c := new(cut)
	return r.WithContext(context.WithValue(r.Context(), cutKey{}, c)), c
}

// roundTrip asks the target and has its answer watched. It is done here and not
// in a response handler, because goproxy drops the Content-Length of an answer
// whose body was exchanged there.
func (f *forward) roundTrip(r *http.Request, _ *goproxy.ProxyCtx) (*http.Response, error) {
	resp, err := f.tr.RoundTrip(r)
	// The body of a 101 is a connection to write to as well, and has no end
	// that could be missed.
	if c, ok := r.Context().Value(cutKey{}).(*cut); ok && err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = watchedBody{resp.Body, c}
	}
	return resp, err
}

// watchedBody notes in cut why its reading ended early. It offers Read and
// Close alone, so that no read gets around it.
type watchedBody struct {
	io.ReadCloser
	cut *cut
}

func (b watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.cut.err = err
	}
	return n, err
}

// breakOff ends the answer to a client so that it cannot be taken for a whole
// one. It does not return.
func breakOff(w http.ResponseWriter) {
	// The header may not be on its way yet. Without it a client takes the end
	// for that of an unused connection, and may ask again unseen.
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}
