package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/platform/httpd"
)

const (
	// pingEvery is how often a stream without events shows life.
	pingEvery = 15 * time.Second
	// recheckEvery is how often the token of a stream is verified again.
	recheckEvery = time.Minute
	// eventPage is how many events are read and sent at once.
	eventPage = 500
	// readEvents is the least time between two readings of new events, however
	// many streams there are.
	readEvents = 50 * time.Millisecond
	// keptEvents is how many of the latest are shared by all streams.
	keptEvents = 4096
)

type eventsInput struct {
	LastEventID string `header:"Last-Event-ID" maxLength:"20" doc:"Number of the last event that was received; a browser sends it by itself when it connects again." example:"4711"`
	After       string `query:"after" maxLength:"20" pattern:"^[0-9]+$" patternDescription:"a number" doc:"The same as Last-Event-ID, which wins. 0 begins with the oldest event that is kept; without either the stream begins now." example:"4711"`
}

// streamEvents checks the request; the stream itself begins behind it.
func (s *server) streamEvents(ctx context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	after := int64(-1) // from now on
	for _, c := range []struct{ name, value string }{{"query.after", in.After}, {"header.Last-Event-ID", in.LastEventID}} {
		if c.value == "" {
			continue
		}
		n, err := strconv.ParseInt(c.value, 10, 64)
		if err != nil || n < 0 {
			return nil, fieldError(c.name, "not the number of an event")
		}
		after = n
	}
	if after < 0 {
		var err error
		if after, err = s.events.latest(ctx); err != nil {
			return nil, err
		}
	}
	leave, err := s.streams.enter(principalOf(ctx).TokenID)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer leave()
		r, w := humago.Unwrap(hc)
		(&stream{server: s, w: w, r: r, after: after}).run()
	}}, nil
}

// stream is one client that is told of events.
type stream struct {
	server *server
	w      http.ResponseWriter
	r      *http.Request
	// after is the number of the last event that was sent.
	after int64
	// reset is set after the client was told that some are gone.
	reset bool
}

func (t *stream) run() {
	h := t.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // a reverse proxy must not hold events back
	// The comment ends the client's wait for the header; the number is where it
	// goes on when it is cut off before the first event.
	if !t.write([]byte("retry: 1000\nid: " + strconv.FormatInt(t.after, 10) + "\n: fleetdesk\n\n")) {
		return
	}
	ping, recheck := time.NewTicker(pingEvery), time.NewTicker(recheckEvery)
	defer ping.Stop()
	defer recheck.Stop()
	for {
		// First the channel, then the reading: what happens in between is seen.
		changed := t.server.opts.Desk.EventsChanged()
		sent, err := t.send()
		if errors.Is(err, errStreamEnds) {
			return
		}
		var again <-chan time.Time
		switch {
		case err != nil: // an outage: the stream outlives it
			changed, again = nil, time.After(time.Second)
		case sent == eventPage: // there is more
			changed, again = nil, time.After(0)
		}
		select {
		case <-changed:
		case <-again:
		case <-ping.C:
			if !t.write([]byte(": ping\n\n")) {
				return
			}
		case <-recheck.C:
			if !t.server.gate.stillGood(t.r) {
				return
			}
		case <-httpd.Stopping(t.r.Context()):
			return
		case <-t.r.Context().Done():
			return
		}
	}
}

var errStreamEnds = fault.New(fault.Transient, "the client is gone")

// send sends what there is, a page at most, and returns how many events it was.
func (t *stream) send() (sent int, err error) {
	ctx, cancel := context.WithTimeout(t.r.Context(), t.server.opts.Limits.CallTimeout)
	defer cancel()
	all, gap, err := t.server.events.since(ctx, t.after)
	if err != nil {
		return 0, err
	}
	var out bytes.Buffer
	if gap && !t.reset {
		// What comes next is not what follows: the client must look anew.
		if len(all) > 0 {
			t.after = all[0].Seq - 1
		}
		out.WriteString("event: reset\nid: " + strconv.FormatInt(t.after, 10) + "\ndata: {}\n\n")
		t.reset = true
	}
	for i := range all {
		if err := writeEvent(&out, &all[i]); err != nil {
			return 0, err
		}
		t.after, t.reset = all[i].Seq, false
	}
	if out.Len() > 0 && !t.write(out.Bytes()) {
		return 0, errStreamEnds
	}
	return len(all), nil
}

func writeEvent(out *bytes.Buffer, e *lease.Event) error {
	data, err := json.Marshal(client.Event{
		Seq: e.Seq, At: timeOnWire(e.At), Kind: e.Kind, Pool: e.Pool, Key: e.Key, Lease: e.Lease, Account: e.Account,
	})
	if err != nil {
		return fault.Errorf(fault.Permanent, "api: encode an event: %w", err)
	}
	out.WriteString("id: " + strconv.FormatInt(e.Seq, 10) + "\nevent: " + e.Kind + "\ndata: ")
	out.Write(data)
	out.WriteString("\n\n")
	return nil
}

// write sends at once; a client that does not take it within seconds is given
// up.
func (t *stream) write(b []byte) bool {
	c := http.NewResponseController(t.w)
	if err := httpd.LongPoll(t.w, 0); err != nil {
		return false
	}
	if _, err := t.w.Write(b); err != nil {
		return false
	}
	return c.Flush() == nil
}

// stillGood reports whether the request's token may read on. A store that does
// not answer is no reason to end a stream.
func (g *gate) stillGood(r *http.Request) bool {
	bearer, _ := bearerOf(r.Header)
	h := sha256.Sum256([]byte(bearer))
	last, known := g.answers.seen.get(h)
	p, err := g.answers.verify(r.Context(), bearer, h, last, known)
	switch fault.Of(err) {
	case "":
		return p.Role.Allows(token.Viewer)
	case fault.Denied, fault.NotFound, fault.Invalid:
		g.answers.seen.remove(h)
		return false
	}
	return true
}

// tail is the latest events, read once for all streams.
type tail struct {
	read    func(ctx context.Context, after int64, limit int) ([]lease.Event, bool, error)
	changed func() <-chan struct{}

	// turn is held by whoever reads.
	turn chan struct{}

	mu sync.Mutex
	// events are all that are kept from start, exclusively, to end.
	events     []lease.Event
	start, end int64
	// known is set once start and end are.
	known bool
	// news is closed when there may be events behind end; nil when there may be
	// at any rate.
	news <-chan struct{}
	last time.Time
}

func newTail(read func(context.Context, int64, int) ([]lease.Event, bool, error), changed func() <-chan struct{}) *tail {
	return &tail{read: read, changed: changed, turn: make(chan struct{}, 1)}
}

// since returns at most eventPage events after a cursor; gap is set when some in
// between are gone. Errors are the store's.
func (t *tail) since(ctx context.Context, after int64) (all []lease.Event, gap bool, err error) {
	if err := t.refresh(ctx); err != nil {
		return nil, false, err
	}
	t.mu.Lock()
	if after >= t.start {
		from, _ := slices.BinarySearchFunc(t.events, after+1, func(e lease.Event, seq int64) int { return int(min(max(e.Seq-seq, -1), 1)) })
		all = slices.Clone(t.events[from:min(len(t.events), from+eventPage)])
		t.mu.Unlock()
		return all, false, nil
	}
	t.mu.Unlock()
	return t.read(ctx, after, eventPage) // what others have left behind
}

// latest returns the number of the last event.
func (t *tail) latest(ctx context.Context) (int64, error) {
	if err := t.refresh(ctx); err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.end, nil
}

// refresh reads what is new.
func (t *tail) refresh(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return fault.Wrap(fault.Timeout, ctx.Err())
	}
	defer func() { <-t.turn }()
	if !t.known {
		end, err := t.find(ctx)
		if err != nil {
			return err
		}
		t.mu.Lock()
		t.start, t.end, t.known = end, end, true
		t.mu.Unlock()
	}
	if t.news != nil {
		select {
		case <-t.news:
		default:
			return nil
		}
	}
	if pause := readEvents - time.Since(t.last); pause > 0 && !t.last.IsZero() {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fault.Wrap(fault.Timeout, ctx.Err())
		}
	}
	// First the channel, then the reading.
	news := t.changed()
	more, gap, err := t.read(ctx, t.end, eventPage)
	t.last = time.Now()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if gap {
		t.events, t.start = nil, t.end
		if len(more) > 0 {
			t.start = more[0].Seq - 1
		}
	}
	t.events = append(t.events, more...)
	if n := len(t.events) - keptEvents; n > 0 {
		t.start = t.events[n-1].Seq
		t.events = slices.Clone(t.events[n:])
	}
	if len(more) > 0 {
		t.end = more[len(more)-1].Seq
	}
	t.news = news
	if len(more) >= eventPage {
		t.news = nil // there is more
	}
	return nil
}

// find searches the number of the last event: events are numbered upwards, so
// there is one after n until n is the last. About a hundred small readings, once.
func (t *tail) find(ctx context.Context) (int64, error) {
	some := func(after int64) (bool, error) {
		e, _, err := t.read(ctx, after, 1)
		return len(e) > 0, err
	}
	low, high := int64(0), int64(1)
	for high < math.MaxInt64/2 {
		yes, err := some(high)
		if err != nil {
			return 0, err
		}
		if !yes {
			break
		}
		low = high
		high *= 2
	}
	for low < high {
		mid := low + (high-low)/2
		yes, err := some(mid)
		if err != nil {
			return 0, err
		}
		if yes {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low, nil
}
