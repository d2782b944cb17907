package gcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	randv2 "math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	compute "google.golang.org/api/compute/v1"
	"google.golang.org/api/option"

	"fleetdesk/internal/core/fault"
)

const (
	// callLimit bounds one request.
	callLimit = 10 * time.Second
	// attempts bounds how often one call is sent when its rate is refused.
	attempts = 8
	// firstPause and mostPause bound the pause after a refused one; it doubles,
	// and up to half of it is taken off at random.
	firstPause = 500 * time.Millisecond
	mostPause  = 8 * time.Second
	// waitPause is the first pause after a wait that was none, and what is none:
	// one that came back sooner.
	waitPause = time.Second
	// maxPages bounds a list; at 500 a page.
	maxPages = 200
	pageSize = 500
)

// api is the Compute Engine API as this provider uses it: each call waits its
// turn, has a deadline, and is repeated when its rate was refused.
type api struct {
	service *compute.Service
	project string
	limiter *rate.Limiter
	// lowly is held by the one lowly call that waits for its turn.
	lowly  chan struct{}
	signer *signer
	// retries counts calls that were sent again.
	retries atomic.Int64
}

func newAPI(conf Section, s *signer) (*api, error) {
	opts := []option.ClientOption{option.WithHTTPClient(&http.Client{Transport: s, CheckRedirect: stay}), option.WithTelemetryDisabled()}
	if conf.Endpoint != "" {
		opts = append(opts, option.WithEndpoint(conf.Endpoint))
	}
	service, err := compute.NewService(context.Background(), opts...)
	if err != nil {
		return nil, fault.Errorf(fault.Permanent, "the Compute Engine client cannot be made: %w", err)
	}
	service.UserAgent = "fleetdesk-proxy-operator"
	burst := max(1, int(conf.RequestsPerSecond))
	return &api{service: service, project: conf.Project, signer: s, lowly: make(chan struct{}, 1), limiter: rate.NewLimiter(rate.Limit(conf.RequestsPerSecond), burst)}, nil
}

// call sends one request, again while its rate is refused and time is left.
func call[T any](ctx context.Context, a *api, send func(ctx context.Context) (T, error)) (T, error) {
	for n := 0; ; n++ {
		out, err := once(ctx, a, send)
		if !limited(err) || n+1 >= attempts {
			return out, classed(ctx, a.project, err)
		}
		pause := min(firstPause<<n, mostPause)
		pause -= time.Duration(randv2.Int64N(int64(pause / 2)))
		if end, ok := ctx.Deadline(); ok && time.Until(end) < pause {
			return out, classed(ctx, a.project, err)
		}
		if rest(ctx, pause); ctx.Err() != nil {
			return out, classed(ctx, a.project, ctx.Err())
		}
		a.retries.Add(1)
	}
}

// errBusy says that a call would not have had its turn in time.
var errBusy = errors.New("more calls wait than gcp.requestsPerSecond lets through in time")

// patience and rank are what contexts carry for calls: how long each may take
// once it is sent, and that others go before it.
type (
	patience struct{}
	rank     struct{}
)

// within bounds each call from when it is sent, so that waiting for one's turn
// is not taken for the silence of a zone.
func within(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, patience{}, d)
}

// lowly lets other calls go before those of ctx.
func lowly(ctx context.Context) context.Context { return context.WithValue(ctx, rank{}, true) }

// turn waits until a call may be sent. Lowly ones wait for that one at a time:
// however many they are, others have one of them before them.
func (a *api) turn(ctx context.Context) error {
	busy := func() error {
		if errors.Is(ctx.Err(), context.Canceled) {
			return ctx.Err()
		}
		return fault.Wrap(fault.Transient, errBusy)
	}
	if ctx.Value(rank{}) != nil {
		select {
		case a.lowly <- struct{}{}:
			defer func() { <-a.lowly }()
		case <-ctx.Done():
			return busy()
		}
	}
	if a.limiter.Wait(ctx) != nil {
		return busy()
	}
	return nil
}

func once[T any](ctx context.Context, a *api, send func(ctx context.Context) (T, error)) (T, error) {
	if err := a.turn(ctx); err != nil {
		var none T
		return none, err
	}
	limit := callLimit
	if d, ok := ctx.Value(patience{}).(time.Duration); ok {
		limit = d
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// The client says only that time is over where a token did not come in time.
	if _, err := a.signer.token(ctx, ""); err != nil {
		var none T
		return none, err
	}
	return send(ctx)
}

func (a *api) getZone(ctx context.Context, zone string) (*compute.Zone, error) {
	return call(ctx, a, func(ctx context.Context) (*compute.Zone, error) {
		return a.service.Zones.Get(a.project, zone).Context(ctx).Do()
	})
}

func (a *api) getRegion(ctx context.Context, region string) (*compute.Region, error) {
	return call(ctx, a, func(ctx context.Context) (*compute.Region, error) {
		return a.service.Regions.Get(a.project, region).Context(ctx).Do()
	})
}

func (a *api) getProject(ctx context.Context) (*compute.Project, error) {
	return call(ctx, a, func(ctx context.Context) (*compute.Project, error) {
		return a.service.Projects.Get(a.project).Fields("name").Context(ctx).Do()
	})
}

func (a *api) getMachineType(ctx context.Context, zone, name string) (*compute.MachineType, error) {
	return call(ctx, a, func(ctx context.Context) (*compute.MachineType, error) {
		return a.service.MachineTypes.Get(a.project, zone, name).Context(ctx).Do()
	})
}

func (a *api) getInstance(ctx context.Context, zone, name string) (*compute.Instance, error) {
	return call(ctx, a, func(ctx context.Context) (*compute.Instance, error) {
		return a.service.Instances.Get(a.project, zone, name).Context(ctx).Do()
	})
}

// insertInstance sends one request id however often it is repeated, so that a
// repetition cannot make a second one.
func (a *api) insertInstance(ctx context.Context, zone string, in *compute.Instance) (*compute.Operation, error) {
	id := requestID()
	return call(ctx, a, func(ctx context.Context) (*compute.Operation, error) {
		return a.service.Instances.Insert(a.project, zone, in).RequestId(id).Context(ctx).Do()
	})
}

func (a *api) startInstance(ctx context.Context, zone, name string) (*compute.Operation, error) {
	id := requestID()
	return call(ctx, a, func(ctx context.Context) (*compute.Operation, error) {
		return a.service.Instances.Start(a.project, zone, name).RequestId(id).Context(ctx).Do()
	})
}

func (a *api) resumeInstance(ctx context.Context, zone, name string) (*compute.Operation, error) {
	id := requestID()
	return call(ctx, a, func(ctx context.Context) (*compute.Operation, error) {
		return a.service.Instances.Resume(a.project, zone, name).RequestId(id).Context(ctx).Do()
	})
}

// deleteInstance does not wait for a graceful shutdown: a proxy has nothing to
// save.
func (a *api) deleteInstance(ctx context.Context, zone, name string) (*compute.Operation, error) {
	id := requestID()
	return call(ctx, a, func(ctx context.Context) (*compute.Operation, error) {
		return a.service.Instances.Delete(a.project, zone, name).NoGracefulShutdown(true).RequestId(id).Context(ctx).Do()
	})
}

func (a *api) getDisk(ctx context.Context, zone, name string) (*compute.Disk, error) {
	return call(ctx, a, func(ctx context.Context) (*compute.Disk, error) {
		return a.service.Disks.Get(a.project, zone, name).Context(ctx).Do()
	})
}

func (a *api) deleteDisk(ctx context.Context, zone, name string) (*compute.Operation, error) {
	id := requestID()
	return call(ctx, a, func(ctx context.Context) (*compute.Operation, error) {
		return a.service.Disks.Delete(a.project, zone, name).RequestId(id).Context(ctx).Do()
	})
}

func (a *api) insertGroup(ctx context.Context, zone string, g *compute.InstanceGroup) (*compute.Operation, error) {
	id := requestID()
	return call(ctx, a, func(ctx context.Context) (*compute.Operation, error) {
		return a.service.InstanceGroups.Insert(a.project, zone, g).RequestId(id).Context(ctx).Do()
	})
}

func (a *api) setNamedPorts(ctx context.Context, zone, group string, ports []*compute.NamedPort) (*compute.Operation, error) {
	id := requestID()
	req := &compute.InstanceGroupsSetNamedPortsRequest{NamedPorts: ports}
	return call(ctx, a, func(ctx context.Context) (*compute.Operation, error) {
		return a.service.InstanceGroups.SetNamedPorts(a.project, zone, group, req).RequestId(id).Context(ctx).Do()
	})
}

func (a *api) deleteGroup(ctx context.Context, zone, group string) (*compute.Operation, error) {
	id := requestID()
	return call(ctx, a, func(ctx context.Context) (*compute.Operation, error) {
		return a.service.InstanceGroups.Delete(a.project, zone, group).RequestId(id).Context(ctx).Do()
	})
}

// list walks a list's pages. Each page says what it has, the next page's token,
// and the code of a warning: a list that is not whole is an error.
func list[T any](ctx context.Context, a *api, page func(ctx context.Context, token string) (items []T, next, warning string, err error)) ([]T, error) {
	type answer struct {
		items         []T
		next, warning string
	}
	var out []T
	token := ""
	for range maxPages {
		got, err := call(ctx, a, func(ctx context.Context) (answer, error) {
			items, next, warning, err := page(ctx, token)
			return answer{items, next, warning}, err
		})
		if err != nil {
			return nil, err
		}
		if got.warning != "" && got.warning != "NO_RESULTS_ON_PAGE" {
			return nil, fault.Errorf(fault.Unavailable, "the API's list is not whole (%s)", line(got.warning))
		}
		out = append(out, got.items...)
		if got.next == "" {
			return out, nil
		}
		token = got.next
	}
	return nil, fault.Errorf(fault.Permanent, "a list has more than %d pages", maxPages)
}

func (a *api) listInstances(ctx context.Context, zone, filter string) ([]*compute.Instance, error) {
	return list(ctx, a, func(ctx context.Context, token string) ([]*compute.Instance, string, string, error) {
		call := a.service.Instances.List(a.project, zone).Filter(filter).MaxResults(pageSize).Context(ctx)
		if token != "" {
			call.PageToken(token)
		}
		l, err := call.Do()
		if err != nil {
			return nil, "", "", err
		}
		warning := ""
		if l.Warning != nil {
			warning = l.Warning.Code
		}
		return l.Items, l.NextPageToken, warning, nil
	})
}

func (a *api) listDisks(ctx context.Context, zone, filter string) ([]*compute.Disk, error) {
	return list(ctx, a, func(ctx context.Context, token string) ([]*compute.Disk, string, string, error) {
		call := a.service.Disks.List(a.project, zone).Filter(filter).MaxResults(pageSize).Context(ctx)
		if token != "" {
			call.PageToken(token)
		}
		l, err := call.Do()
		if err != nil {
			return nil, "", "", err
		}
		warning := ""
		if l.Warning != nil {
			warning = l.Warning.Code
		}
		return l.Items, l.NextPageToken, warning, nil
	})
}

func (a *api) listGroups(ctx context.Context, zone, filter string) ([]*compute.InstanceGroup, error) {
	return list(ctx, a, func(ctx context.Context, token string) ([]*compute.InstanceGroup, string, string, error) {
		call := a.service.InstanceGroups.List(a.project, zone).Filter(filter).MaxResults(pageSize).Context(ctx)
		if token != "" {
			call.PageToken(token)
		}
		l, err := call.Do()
		if err != nil {
			return nil, "", "", err
		}
		warning := ""
		if l.Warning != nil {
			warning = l.Warning.Code
		}
		return l.Items, l.NextPageToken, warning, nil
	})
}

func (a *api) listOperations(ctx context.Context, zone, filter string) ([]*compute.Operation, error) {
	return list(ctx, a, func(ctx context.Context, token string) ([]*compute.Operation, string, string, error) {
		call := a.service.ZoneOperations.List(a.project, zone).Filter(filter).MaxResults(pageSize).Context(ctx)
		if token != "" {
			call.PageToken(token)
		}
		l, err := call.Do()
		if err != nil {
			return nil, "", "", err
		}
		warning := ""
		if l.Warning != nil {
			warning = l.Warning.Code
		}
		return l.Items, l.NextPageToken, warning, nil
	})
}

const done = "DONE"

// await waits for an operation, at most for the time given, and returns it as it
// is then.
func (a *api) await(ctx context.Context, zone, name string, most time.Duration) (*compute.Operation, error) {
	waiting, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for pause := waitPause; waiting.Err() == nil; {
		asked := time.Now()
		op, err := call(waiting, a, func(ctx context.Context) (*compute.Operation, error) {
			return a.service.ZoneOperations.Wait(a.project, zone, name).Context(ctx).Do()
		})
		switch {
		case err == nil && op.Status == done:
			return op, nil
		case errors.Is(err, errBusy):
			cancel() // there is more time than for this
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			return nil, err
		case err == nil && time.Since(asked) < waitPause:
			// An API that is overloaded answers at once instead of waiting.
			rest(waiting, pause+time.Duration(randv2.Int64N(int64(pause/2))))
			pause = min(2*pause, mostPause)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// That it takes long and that the zone is mute look the same from there.
	return call(ctx, a, func(ctx context.Context) (*compute.Operation, error) {
		return a.service.ZoneOperations.Get(a.project, zone, name).Context(ctx).Do()
	})
}

// rest waits for the time given, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// requestID is a new UUID.
func requestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
