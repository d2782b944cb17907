package sqldb

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetdesk/internal/core/lease"
)

const (
	// channel is where transactions tell what they changed.
	channel = "fleetdesk_desk"
	// longestNotice is the length of a notice beyond which it says that all
	// pools changed; the server takes 8000 bytes.
	longestNotice = 4000
	// listenPing is how long nothing may be heard before the connection is asked
	// whether it lives, and listenAnswer how long that may take.
	listenPing   = 10 * time.Second
	listenAnswer = 5 * time.Second
	// listenAgain is the pause before a lost connection is made anew; it doubles
	// up to listenAtMost.
	listenAgain  = 50 * time.Millisecond
	listenAtMost = 5 * time.Second
)

// newSelf draws the name of a handle.
func newSelf() string { return rand.Text() }

// notice is what a transaction tells other processes.
type notice struct {
	By     string   `json:"by"`
	Freed  []string `json:"freed,omitempty"`
	All    bool     `json:"all,omitempty"`
	Events bool     `json:"events,omitempty"`
}

// notice is the text of a transaction's news; "" when there is none.
func (e *postgresEngine) notice(n lease.News) string {
	if len(n.Freed) == 0 && !n.All && !n.Events {
		return ""
	}
	b, _ := json.Marshal(notice{e.self, n.Freed, n.All, n.Events}) //nolint:errchkjson // texts always can
	if len(b) > longestNotice {
		b, _ = json.Marshal(notice{e.self, nil, true, n.Events}) //nolint:errchkjson // texts always can
	}
	return string(b)
}

// watch implements engine: it keeps one connection beside the pool.
func (e *postgresEngine) watch(ctx context.Context, w lease.Watcher) error {
	again := listenAgain
	for ctx.Err() == nil {
		if heard := e.listen(ctx, w); heard {
			again = listenAgain
		}
		pause(ctx, again, nil)
		again = min(2*again, listenAtMost)
	}
	return nil
}

// listen hears notices until the connection is lost or ctx ends; it reports
// whether there was a connection.
func (e *postgresEngine) listen(ctx context.Context, w lease.Watcher) (heard bool) {
	cfg := e.pool.Config()
	c, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return false
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWait)
		defer cancel()
		_ = c.Close(ctx)
	}()
	ask := func(sql string) error {
		ctx, cancel := context.WithTimeout(ctx, listenAnswer)
		defer cancel()
		_, err := c.Exec(ctx, sql)
		return err
	}
	if e.greet(ctx, c) != nil || ask("LISTEN "+channel) != nil {
		return false
	}
	w.Changed(lease.News{All: true, Events: true}) // what was missed until now
	for {
		within, cancel := context.WithTimeout(ctx, listenPing)
		n, err := c.WaitForNotification(within)
		cancel()
		switch {
		case ctx.Err() != nil:
			return true
		case err == nil:
			e.hear(w, n.Payload)
		case within.Err() == nil || c.IsClosed() || ask("SELECT 1") != nil:
			return true
		}
	}
}

// hear tells of a notice; this handle's own were told when they were done.
func (e *postgresEngine) hear(w lease.Watcher, text string) {
	var n notice
	if err := json.Unmarshal([]byte(text), &n); err != nil { // another program's
		n = notice{All: true, Events: true}
	}
	if n.By != e.self {
		w.Changed(lease.News{Freed: n.Freed, All: n.All, Events: n.Events})
	}
}
