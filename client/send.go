package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// call is one request of /api/v1.
type call struct {
	// op says in errors what was asked.
	op string
	// method and parts, the path behind /api/v1, say whom.
	method string
	parts  []string
	query  url.Values
	// header goes beside what every request carries.
	header http.Header
	// body is sent as JSON; nil for none.
	body any
	// out takes the JSON of an answer 200 or 201; nil where only 204 is success.
	out any
	// answer takes the head of such an answer; nil when nobody asks.
	answer *answerHead
	// longer is how much more time than others one attempt may take, since the
	// server waits.
	longer time.Duration
	// repeatable is whether asking twice does no more than asking once: only
	// then is a call that failed for now tried again, since it may have been
	// done all the same.
	repeatable bool
}

// answerHead is what an answer says besides its body.
type answerHead struct {
	status int
	header http.Header
}

// do makes the call, with retries when it is repeatable.
func (c *Client) do(ctx context.Context, k call) error {
	target := c.base
	for _, p := range k.parts {
		if p == "" || p == "." || p == ".." {
			return &Error{Class: Invalid, op: k.op, Title: "a name is missing or is a dot path"}
		}
		target += "/" + url.PathEscape(p)
	}
	if len(k.query) > 0 {
		target += "?" + k.query.Encode()
	}
	var body []byte
	if k.body != nil {
		var err error
		if body, err = json.Marshal(k.body); err != nil {
			return &Error{Class: Invalid, op: k.op, cause: err}
		}
	}
	for attempt := 0; ; attempt++ {
		err := c.once(ctx, k, target, body)
		if err == nil {
			return nil
		}
		pause, again := retryPause(err, attempt)
		if !again || !k.repeatable || attempt >= c.retries || ctx.Err() != nil {
			return err
		}
		// A pause beyond the caller's deadline would only turn the server's
		// answer into a less telling one.
		if end, ok := ctx.Deadline(); ok && time.Until(end) <= pause {
			return err
		}
		if !sleep(ctx, pause) {
			return err
		}
	}
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// once makes the call one time.
func (c *Client) once(ctx context.Context, k call, target string, body []byte) *Error {
	var content io.Reader
	if k.body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, k.method, target, content)
	if err != nil {
		return &Error{Class: Invalid, op: k.op, cause: err}
	}
	for name, values := range k.header {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	req.Header.Set("Accept", "application/json")
	if k.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	c.authorize(req)
	hc := *c.http
	if hc.Timeout > 0 {
		hc.Timeout += k.longer
	}
	if k.method != http.MethodGet {
		// Some redirects turn a change into a read, which would look like success.
		hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	resp, err := hc.Do(req)
	if err != nil {
		return noAnswer(k.op, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return noAnswer(k.op, err)
	case k.out == nil && resp.StatusCode == http.StatusNoContent:
		return nil
	case k.out != nil && (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusCreated):
	default:
		return answered(k.op, resp, answer)
	}
	if len(answer) > maxBody {
		return &Error{
			Class: Invalid, Status: resp.StatusCode, op: k.op,
			cause: fmt.Errorf("the answer is larger than %d bytes: ask for a smaller page", maxBody),
		}
	}
	if err := json.Unmarshal(answer, k.out); err != nil {
		return &Error{
			Class: Permanent, Status: resp.StatusCode, op: k.op,
			cause: fmt.Errorf("the answer is not the desk's: check BaseURL: %w", err),
		}
	}
	if k.answer != nil {
		*k.answer = answerHead{resp.StatusCode, resp.Header}
	}
	return nil
}
