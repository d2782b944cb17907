package probe

import (
	"context"
	"io"
	"time"

	"fleetdesk/internal/core/health"
)

// ExitIP and SOCKSConnect are tested apart from the network.
var ExitIP = exitIP

func SOCKSConnect(rw io.ReadWriter, t Target, addr string) error { return socksConnect(rw, t, addr) }

// Scripted replaces the request that a Direct makes.
func (d *Direct) Scripted(send func(context.Context, Check) (health.Control, error)) *Direct {
	d.send = send
	return d
}

// Hurried makes a Direct as impatient as a test that waits in earnest.
func (d *Direct) Hurried(patience time.Duration) *Direct {
	d.patience = patience
	return d
}

// Record makes facts of probes apart from the loop.
type Record struct{ r record }

func NewRecord(known Facts) *Record { return &Record{before(known)} }

func (r *Record) Add(res Result) Facts {
	r.r.add(res)
	return r.r.facts
}

// Again goes on with another test of the same proxy.
func (r *Record) Again() *Record { return &Record{r.r.again()} }
