package leases_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"fleetdesk/client"
)

// beClients is a process of several clients that take keys, use them and give
// them back, each with a history of its own, until it is ended or killed.
func beClients(ctx context.Context) error {
	token, err := os.ReadFile(*bearer)
	if err != nil {
		return err
	}
	var desks []*client.Client
	conns := connections(*number, 0)
	for _, url := range strings.Split(*servers, ",") {
		c, err := client.New(client.Options{BaseURL: url, Token: client.Token(strings.TrimSpace(string(token))), HTTPClient: conns, Retries: -1})
		if err != nil {
			return err
		}
		desks = append(desks, c)
	}
	var group sync.WaitGroup
	errs := make([]error, *number)
	for i := range *number {
		group.Go(func() {
			b := &busyClient{desks: desks, name: fmt.Sprintf("%s-%d", *name, i), random: rand.New(rand.NewPCG(*seed, uint64(i)))}
			errs[i] = b.run(ctx)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// busyClient is one client. It asks another server when one does not answer.
type busyClient struct {
	desks  []*client.Client
	name   string
	random *rand.Rand
	file   *os.File
	keys   int
}

func (b *busyClient) desk() *client.Client { return b.desks[b.random.IntN(len(b.desks))] }

// note writes a line of the history with one write.
func (b *busyClient) note(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = b.file.Write(append(line, '\n'))
	return err
}

func (b *busyClient) run(ctx context.Context) (err error) {
	if b.file, err = os.Create(filepath.Join(*folder, b.name+".jsonl")); err != nil {
		return err
	}
	defer b.file.Close()
	for ctx.Err() == nil {
		if err := b.once(ctx); err != nil {
			return err
		}
	}
	return nil
}

// once lives through one lease, or through a refusal.
func (b *busyClient) once(ctx context.Context) error {
	asked := bootTime()
	l, err := b.take(ctx)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // told to stop: what came of the take is nobody's question
	}
	switch {
	case errors.Is(err, client.Quota):
		return b.note(entry{At: bootTime(), Event: "none", Text: err.Error()})
	case err != nil:
		return b.note(entry{At: bootTime(), Event: "error", Text: err.Error()})
	}
	e := entry{Key: l.Key(), Fence: l.Fence(), Asked: asked, Event: "granted"}
	e.Until = bootTime() + int64(l.Left())
	e.At = bootTime()
	if err := b.note(e); err != nil {
		return err
	}
	if b.random.IntN(20) == 0 {
		return nil // lost interest without a word: the lease expires
	}
	for range b.random.IntN(3) {
		if !b.nap(ctx, time.Duration(b.random.IntN(400))*time.Millisecond) {
			return nil
		}
		if lost, err := b.renew(ctx, l, e); err != nil || lost {
			return err
		}
	}
	if !b.nap(ctx, time.Duration(b.random.IntN(300))*time.Millisecond) {
		return nil
	}
	return b.release(ctx, l, e)
}

func (b *busyClient) nap(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// take asks one server after the other for the same thing.
func (b *busyClient) take(ctx context.Context) (*client.Lease, error) {
	b.keys++
	o := client.TakeOptions{
		Holder: b.name, TTL: time.Duration(5+b.random.IntN(3)) * time.Second, Wait: 2 * time.Second,
		IdempotencyKey: fmt.Sprintf("%s/%d", b.name, b.keys),
	}
	if b.random.IntN(4) == 0 {
		o.Wait = 0
	}
	var err error
	for range 20 {
		var l *client.Lease
		one, cancel := context.WithTimeout(ctx, 6*time.Second)
		l, err = b.desk().Take(one, pool, o)
		cancel()
		if err == nil {
			return l, nil
		}
		if ctx.Err() != nil || !errors.Is(err, client.Unavailable) && !errors.Is(err, client.Timeout) && !errors.Is(err, client.Transient) {
			return nil, err
		}
		b.nap(ctx, 100*time.Millisecond)
	}
	return nil, err
}

// lostBy reports whether an error says that the lease runs no more.
func lostBy(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	return ok && strings.HasPrefix(e.Code, "lease")
}

func (b *busyClient) renew(ctx context.Context, l *client.Lease, e entry) (lost bool, err error) {
	for range 5 {
		sent := bootTime()
		one, cancel := context.WithTimeout(ctx, 2*time.Second)
		info, err := b.desk().RenewLease(one, l.ID(), l.Secret(), client.RenewRequest{})
		cancel()
		switch {
		case err == nil:
			e.Event, e.At, e.Until = "renewed", bootTime(), sent+int64(info.SecondsLeft.Duration())
			return false, b.note(e)
		case lostBy(err):
			e.Event, e.At, e.Text = "lost", sent, err.Error()
			return true, b.note(e)
		case ctx.Err() != nil:
			return true, nil //nolint:nilerr // told to stop
		}
		b.nap(ctx, 100*time.Millisecond)
	}
	return false, nil // nobody answers: the lease goes on as it was
}

func (b *busyClient) release(ctx context.Context, l *client.Lease, e entry) error {
	e.Event, e.At = "releasing", bootTime()
	if err := b.note(e); err != nil {
		return err
	}
	for range 10 {
		one, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := b.desk().ReleaseLease(one, l.ID(), l.Secret(), client.ReleaseRequest{})
		cancel()
		if err == nil || lostBy(err) || ctx.Err() != nil {
			break
		}
		b.nap(ctx, 100*time.Millisecond)
	}
	e.Event, e.At = "released", bootTime()
	return b.note(e)
}
