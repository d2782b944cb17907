package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// EventReset is the kind of the event that says that some before it are gone:
// read anew what you follow.
const EventReset = "reset"

// Event is something that happened at the desk.
type Event struct {
	// Seq numbers events upwards, with gaps.
	Seq int64 `json:"seq" doc:"Numbers events upwards, with gaps." example:"4711"`
	// At is when (RFC 3339, UTC, seconds).
	At time.Time `json:"at" doc:"When it happened (RFC 3339)." example:"2026-01-02T15:04:05Z"`
	// Kind is taken, released, expired, disabled and so on, or reset.
	Kind string `json:"kind" doc:"taken, released, expired, forced, unclaimed, banned, disabled, enabled, lifted, published and so on; reset when earlier events are gone." example:"taken"`
	// Pool, Key and Lease (its public id) are "" where they do not apply.
	Pool  string `json:"pool,omitempty" doc:"Pool that it is about." example:"win"`
	Key   string `json:"key,omitempty" doc:"Key that it is about." example:"win-01"`
	Lease string `json:"lease,omitempty" doc:"Public id of the lease that it is about." example:"win-01~17"`
	// Account is who did it; "" for the desk itself.
	Account string `json:"account,omitempty" doc:"Account that did it; absent for the desk itself." example:"ci"`
}

const (
	// silence is how long a stream may be mute before it counts as dead: the
	// server shows life every 15 s.
	silence = 45 * time.Second
	// maxLine bounds one line of a stream.
	maxLine = 64 << 10
)

// Events follows what happens, from the event behind number after on; a negative
// one is now. It connects again when the connection is lost, without gaps while
// the server keeps the events; otherwise one of kind [EventReset] comes first.
// It ends when ctx does, with its error, and with an error that does not go away
// by itself (Denied, Invalid).
func (c *Client) Events(ctx context.Context, after int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for attempt := 0; ; attempt++ {
			before := after
			err := c.stream(ctx, &after, func(e Event) bool { return yield(e, nil) })
			if errors.Is(err, errEnough) {
				return
			}
			if ctx.Err() != nil {
				yield(Event{}, noAnswer("follow events", context.Cause(ctx)))
				return
			}
			e, ok := errors.AsType[*Error](err)
			if ok && !e.temporary() {
				yield(Event{}, e)
				return
			}
			if after != before {
				attempt = 0
			}
			pause := min(firstPause<<min(attempt, 10), maxPause)
			if ok {
				pause = max(pause, e.RetryAfter)
			}
			if !sleep(ctx, pause-rand.N(pause/2+1)) {
				continue // the next round says why
			}
		}
	}
}

// errEnough ends a stream that nobody reads on.
var errEnough = errors.New("enough")

// stream is one connection. It returns nil when it was cut.
func (c *Client) stream(ctx context.Context, after *int64, yield func(Event) bool) error {
	const op = "follow events"
	caller := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchdog := time.AfterFunc(silence, cancel)
	defer watchdog.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/events", nil)
	if err != nil {
		return &Error{Class: Invalid, op: op, cause: err}
	}
	req.Header.Set("Accept", "text/event-stream")
	if *after >= 0 {
		req.Header.Set("Last-Event-ID", strconv.FormatInt(*after, 10))
	}
	c.authorize(req)
	hc := *c.http
	hc.Timeout = 0 // it has no end; silence has one
	resp, err := hc.Do(req)
	if err != nil {
		e := noAnswer(op, err)
		if ctx.Err() != nil && caller.Err() == nil {
			e.Class = Timeout // the watchdog's doing, not the caller's
		}
		return e
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody))
		return answered(op, resp, body)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	var kind, data string
	id := *after
	for lines.Scan() {
		watchdog.Reset(silence)
		name, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "id":
			if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
				id = n
			}
		case "event":
			kind = string(value)
		case "data":
			data = string(value)
		}
		if len(lines.Bytes()) > 0 {
			continue
		}
		*after = id
		if data == "" {
			kind = ""
			continue
		}
		e := Event{Seq: id, Kind: kind}
		if kind != EventReset {
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				return &Error{Class: Permanent, Status: resp.StatusCode, op: op, cause: err}
			}
		}
		kind, data = "", ""
		if !yield(e) {
			return errEnough
		}
	}
	return nil // cut; what was sent whole was told of
}
