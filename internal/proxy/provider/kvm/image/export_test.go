package image

import (
	"context"
	"io"
	"net/http"
	"net/url"
)

// Shown is tested apart: every text about a source goes through it.
var Shown = shown

// OpenBody is Open with an answer whose body may break HTTP's rules.
func (f *Fetcher) OpenBody(ctx context.Context, s Source, body io.ReadCloser, length int64) (*Stream, error) {
	own, cancel := context.WithCancelCause(ctx)
	t := &transfer{f: f, outer: ctx, ctx: own, cancel: cancel, first: &url.URL{Scheme: "https", Host: "images.example.com"}}
	st := newStream(t, s, t.where(t.first), &http.Response{Body: body, ContentLength: length})
	return st, st.readHeader()
}
