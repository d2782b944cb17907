package kvm

import (
	"context"
	"fmt"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/image"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// cachedImage returns the verified image on the host, when there is one.
//
// A volume never gets another content: each upload goes into a volume of a new
// name, and only a marker volume beside it, written when the upload is
// verified, makes it the image. So nothing that a machine stands on is
// replaced, and uploads of two operators never mix in one file. docs/decisions
// has why.
func (p *Provider) cachedImage(ctx context.Context, c virt.Conn, h *host, pool pool, pl plan) (found image.Cached, ok bool, err error) {
	key := p.jobKey(h, pl).image
	if found, ok := h.cached(key); ok {
		_, err := c.StorageVolLookupByName(ctx, pool.Pool, found.Volume)
		if err == nil {
			return found, true, nil
		}
		if fault.Of(err) != fault.NotFound {
			return image.Cached{}, false, err
		}
		h.uncache(key)
	}
	found, ok, _, err = h.find(ctx, c, pool.Pool, key)
	if err != nil || !ok {
		return image.Cached{}, false, err
	}
	h.cache(key, found)
	return found, true, nil
}

// find looks for the verified image of a key in a pool, and for halves.
func (h *host) find(ctx context.Context, c virt.Conn, pool virt.Pool, key string) (found image.Cached, ok bool, halves []string, err error) {
	names, err := volumeNames(ctx, c, pool)
	if err != nil {
		return found, false, nil, err
	}
	found, ok, halves = image.Find(names, key)
	return found, ok, halves, nil
}

func volumeNames(ctx context.Context, c virt.Conn, pool virt.Pool) ([]string, error) {
	vols, err := c.StoragePoolListAllVolumes(ctx, pool)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(vols))
	for i, v := range vols {
		names[i] = v.Name
	}
	return names, nil
}

func (p *Provider) jobKey(h *host, pl plan) jobKey {
	return jobKey{h.name, image.Key(pl.spec.Owner.Installation, p.name, pl.picture.source)}
}

// await joins the upload of an image, or begins it, and says how far it is.
func (p *Provider) await(h *host, pl plan) (waits string, err error) {
	key := p.jobKey(h, pl)
	j := p.jobs.join(key, p.now, func(ctx context.Context, j *job) error { return p.upload(ctx, h, pl, key.image, j) })
	if waits, err = j.state(); err != nil {
		err = fmt.Errorf("image %s: %w", pl.picture.name, err)
	}
	return waits, err
}

func (h *host) cached(key string) (image.Cached, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.images[key]
	return c, ok
}

func (h *host) cache(key string, c image.Cached) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.images[key] = c
}

func (h *host) uncache(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.images, key)
}

// cleanLimit bounds what is done for order after a failed upload, stopLimit the
// same while the operator stops.
const (
	cleanLimit = 30 * time.Second
	stopLimit  = 3 * time.Second
)

// upload fetches an image and brings it onto the host, verified and marked. It
// leaves no half volume: neither its own nor those of earlier uploads of the
// key that ended without a marker.
func (p *Provider) upload(ctx context.Context, h *host, pl plan, key string, j *job) (err error) {
	select {
	case h.uploading <- struct{}{}:
		defer func() { <-h.uploading }()
	case <-ctx.Done():
		return fault.Wrap(fault.Timeout, fmt.Errorf("other images are uploaded to host %s: %w", h.name, ctx.Err()))
	}
	ctx, cancel := context.WithTimeout(ctx, uploadLimit)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	j.asks()
	// Another job may have ended between this one's reason and its turn.
	there := false
	err = p.links.Use(ctx, h.name, func(ctx context.Context, c virt.Conn) error {
		c = virt.Traced(c, h.name, p.log)
		pool, err := h.pool(ctx, c)
		if err == nil {
			_, there, _, err = h.find(ctx, c, pool.Pool, key)
		}
		return err
	})
	if err != nil || there {
		return err
	}
	src, err := p.fetch.Open(ctx, pl.picture.source)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }() // it never fails
	j.follow(src, src.Length())
	defer leastRate(src.Count, stop)()
	volume := image.VolumeName(key, image.Nonce(), src.Header().Format)
	err = p.links.Use(ctx, h.name, func(ctx context.Context, c virt.Conn) error {
		c = virt.Traced(c, h.name, p.log)
		pool, err := h.pool(ctx, c)
		if err != nil {
			return err
		}
		// As it is now: it may have taken long to come here.
		_, ok, halves, err := h.find(ctx, c, pool.Pool, key)
		if err != nil || ok {
			there = ok
			return err
		}
		used, err := p.bases(ctx, c, h, pl.spec.Owner.Installation)
		if err != nil {
			return err
		}
		for _, name := range halves {
			if used[name] {
				p.log.Warn("kvm: the marker of an image is gone and machines stand on it: the volume is left as it is, and the image is uploaded again beside it",
					"provider", p.name, "host", h.name, "image", pl.picture.name, "volume", name)
				continue
			}
			if err := h.remove(ctx, c, pool.Pool, name); err != nil {
				return fmt.Errorf("removing %s, which an earlier upload left: %w", name, err)
			}
		}
		if need := uint64(src.Length()); need > pool.info.Available {
			return fault.Errorf(fault.Quota, "host %s: the image has %s and pool %s %s free: free space there", h.name, mib(need), h.conf.Pool, mib(pool.info.Available))
		}
		return p.fill(ctx, c, h, pool, src, volume)
	})
	if there {
		return nil
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && fault.Classed(cause) {
		err = cause
	}
	if err == nil {
		p.log.Info("kvm: image uploaded", "provider", p.name, "host", h.name, "image", pl.picture.name, "volume", volume, "bytes", src.Count(), "sha256", src.Sum())
		return nil
	}
	// Also when the operator stops, but not for long then.
	limit := cleanLimit
	if ctx.Err() != nil {
		limit = stopLimit
	}
	tidy, done := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer done()
	if cleanErr := p.clean(tidy, h, pl, volume); cleanErr != nil {
		p.jobs.later(func(ctx context.Context) { p.keepCleaning(ctx, h, pl, volume) })
		return fmt.Errorf("%w; %w", err, cleanErr)
	}
	return err
}

// bases are the volumes that the installation's machines stand on.
func (p *Provider) bases(ctx context.Context, c virt.Conn, h *host, installation string) (map[string]bool, error) {
	list, err := p.scan(ctx, c, h, installation)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, s := range list {
		if s.torn != nil {
			return nil, fault.Errorf(fault.Transient, "nothing is removed while it cannot be read what a machine stands on: %w", s.torn)
		}
		used[s.mark.Image] = true
	}
	return used, nil
}

// fill makes the volume, writes the image into it and marks it as verified.
func (p *Provider) fill(ctx context.Context, c virt.Conn, h *host, pool pool, src *image.Stream, volume string) error {
	// The volume is raw to libvirt while it is filled: as qcow2 it would get a
	// header of its own first. It is made of one byte and grows with what
	// arrives: libvirt answers OK to an upload whose end did not fit into the
	// pool, and only the file's length tells.
	text, err := domain.VolumeXML(volume, string(image.Raw), 1, "", "")
	if err != nil {
		return err
	}
	vol, err := c.StorageVolCreateXML(ctx, pool.Pool, text)
	if err != nil {
		return fmt.Errorf("making volume %s: %w", volume, err)
	}
	if err := c.StorageVolUpload(ctx, vol, src, uint64(max(src.Length(), 0))); err != nil {
		if cause := src.Err(); cause != nil {
			return cause
		}
		err = fmt.Errorf("uploading to volume %s after %s: %w", volume, mib(uint64(src.Count())), err)
		if fault.Of(err) == fault.Quota {
			err = fmt.Errorf("%w: free space in pool %s there", err, pool.Name)
		}
		return err
	}
	if err := src.Verified(); err != nil {
		return err
	}
	info, err := c.StorageVolGetInfo(ctx, vol)
	if err != nil {
		return err
	}
	if info.Physical != uint64(src.Count()) {
		return fault.Errorf(fault.Transient, "host %s: volume %s has %d bytes, and %d were sent", h.name, volume, info.Physical, src.Count())
	}
	marker, err := domain.VolumeXML(image.MarkerName(volume, src.Header().VirtualSize), string(image.Raw), 1, "", "")
	if err != nil {
		return err
	}
	_, err = c.StorageVolCreateXML(ctx, pool.Pool, marker)
	return err
}

// clean removes a volume that an upload did not finish. When its marker is there
// the upload did finish, and only the answer was lost; and what machines stand
// on stays.
func (p *Provider) clean(ctx context.Context, h *host, pl plan, volume string) error {
	err := p.links.Use(ctx, h.name, func(ctx context.Context, c virt.Conn) error {
		pool, err := h.remaining(ctx, c, h.conf.Pool)
		if err != nil || pool == nil {
			return err
		}
		names, err := volumeNames(ctx, c, *pool)
		if err != nil {
			return err
		}
		if image.Verified(names, volume) {
			return nil
		}
		used, err := p.bases(ctx, c, h, pl.spec.Owner.Installation)
		if err != nil || used[volume] {
			return err
		}
		return h.remove(ctx, c, *pool, volume)
	})
	if err != nil {
		return fmt.Errorf("volume %s is half full and is removed when the host answers again: %w", volume, err)
	}
	return nil
}

// cleanPauses are the pauses between tries to remove a half volume from a host
// that cannot be reached.
var cleanPauses = fault.Retry{Min: 2 * time.Second, Max: 5 * time.Minute}

// keepCleaning removes a half volume as soon as its host can be reached. What
// it does not bring to its end, the next upload of the image does.
func (p *Provider) keepCleaning(ctx context.Context, h *host, pl plan, volume string) {
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(cleanPauses.After(n, 0)):
		}
		try, cancel := context.WithTimeout(ctx, cleanLimit)
		err := p.clean(try, h, pl, volume)
		cancel()
		if err == nil {
			p.log.Info("kvm: half a volume of an upload that failed was removed", "provider", p.name, "host", h.name, "volume", volume)
			return
		}
	}
}

// jobKey names an upload: one for each image and host.
type jobKey struct{ host, image string }

// jobs are the uploads that run, and the failures of those that ended lately.
type jobs struct {
	ctx  context.Context //nolint:containedctx // the life of the jobs, which outlive the calls that begin them
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu sync.Mutex
	of map[jobKey]*job
}

func newJobs() *jobs {
	ctx, stop := context.WithCancel(context.Background())
	return &jobs{ctx: ctx, stop: stop, of: map[jobKey]*job{}}
}

// close ends all uploads and waits for their order.
func (js *jobs) close() {
	// Under the lock, so that nothing is added while Wait runs.
	js.mu.Lock()
	js.stop()
	js.mu.Unlock()
	js.wg.Wait()
}

// running is the job of that key, when it runs.
func (js *jobs) running(key jobKey) *job {
	js.mu.Lock()
	defer js.mu.Unlock()
	if j, ok := js.of[key]; ok && !j.failed() {
		return j
	}
	return nil
}

// failureAge is how long a failed upload answers those that ask for it again,
// so that a hundred Proxies that wait for one image do not fetch it a hundred
// times.
const failureAge = 5 * time.Second

// jobLimit bounds one job, uploadLimit the upload in it when its turn has come.
const (
	jobLimit    = 12 * time.Hour
	uploadLimit = 3 * time.Hour
)

// A source or a link that gives less than leastBytes in leastTime holds other
// images up for nothing.
const (
	leastBytes = 4 << 20
	leastTime  = 2 * time.Minute
)

// leastRate ends an upload that gets nowhere; count is how many bytes came. The returned function ends the
// watch.
func leastRate(count func() int64, stop context.CancelCauseFunc) (end func()) {
	over := make(chan struct{})
	go func() {
		tick := time.NewTicker(leastTime)
		defer tick.Stop()
		for last := int64(0); ; {
			select {
			case <-over:
				return
			case <-tick.C:
			}
			now := count()
			if now-last < leastBytes {
				stop(fault.Errorf(fault.Timeout, "only %s came in %s, less than the %s that an upload must make: see to its source and to the link to the host", mib(uint64(now-last)), leastTime, mib(leastBytes)))
				return
			}
			last = now
		}
	}()
	return func() { close(over) }
}

// join returns the job of that key: the one that runs, the one that failed a
// moment ago, or a new one.
func (js *jobs) join(key jobKey, now func() time.Time, run func(ctx context.Context, j *job) error) *job {
	js.mu.Lock()
	defer js.mu.Unlock()
	for k, j := range js.of {
		if j.over(now(), failureAge) {
			delete(js.of, k)
		}
	}
	if j, ok := js.of[key]; ok {
		return j
	}
	j := &job{began: now(), host: key.host}
	if js.ctx.Err() != nil {
		j.end(fault.New(fault.Unavailable, "the operator is stopping"), now())
		return j
	}
	js.of[key] = j
	js.wg.Go(func() {
		ctx, cancel := context.WithTimeout(js.ctx, jobLimit)
		defer cancel()
		err := run(ctx, j)
		js.mu.Lock()
		defer js.mu.Unlock()
		j.end(err, now())
		if err == nil {
			delete(js.of, key)
		}
	})
	return j
}

// later runs f beside the jobs, for as long as a job may run.
func (js *jobs) later(f func(ctx context.Context)) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.ctx.Err() != nil {
		return
	}
	js.wg.Go(func() {
		ctx, cancel := context.WithTimeout(js.ctx, jobLimit)
		defer cancel()
		f(ctx)
	})
}

// job is one upload.
type job struct {
	began time.Time
	host  string

	mu    sync.Mutex
	asked bool
	src   *image.Stream
	total int64
	ended time.Time
	err   error
}

// asks notes that its turn has come.
func (j *job) asks() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked = true
}

func (j *job) failed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return !j.ended.IsZero()
}

func (j *job) follow(src *image.Stream, total int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.src, j.total = src, total
}

func (j *job) end(err error, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err, j.ended = err, now
}

// over reports whether it failed longer ago than that.
func (j *job) over(now time.Time, age time.Duration) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return !j.ended.IsZero() && now.Sub(j.ended) >= age
}

// state says how far it is, or why it failed.
func (j *job) state() (string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return "", j.err
	}
	since := moment(j.began)
	switch {
	case !j.asked:
		return fmt.Sprintf("defined; waiting since %s for another image that is uploaded to %s", since, j.host), nil
	case j.src == nil:
		return fmt.Sprintf("defined; asking for the image since %s", since), nil
	case j.total > 0:
		// In steps, since each is a write of the Proxy's status.
		return fmt.Sprintf("defined; uploading the image to %s since %s: %d %% of %s", j.host, since, j.src.Count()*10/j.total*10, mib(uint64(j.total))), nil
	}
	return fmt.Sprintf("defined; uploading the image to %s since %s", j.host, since), nil
}
