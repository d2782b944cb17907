package proxyset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/proxy/deskkeys"
)

// pass is one reconcile of a set: what it works on, and what it knows.
type pass struct {
	r    *Reconciler
	set  *v1alpha1.ProxySet
	book *book
	now  time.Time
	hash string
	// unseen are Proxies that exist as far as we know and that look did not find
	// in the cache: by name, since when.
	unseen map[string]time.Time
}

// keep brings a live set nearer to what its spec says.
func (p *pass) keep(ctx context.Context) (after time.Duration, err error) {
	if err := p.addFinalizer(ctx); err != nil {
		return 0, err
	}
	p.hash = templateHash(&p.set.Spec.Template)
	own, err := p.look(ctx)
	if errors.Is(err, errTooMany) {
		return 0, errors.Join(err, p.sayBlind(ctx, err))
	}
	if err != nil {
		return 0, err
	}
	s := p.state(ctx, own)
	d := plan(s)
	if p.holders(ctx, &d) {
		d = plan(s)
	}
	// Stored first: what is decided for bans is counted before it is done, so
	// that no restart forgets it.
	if err := p.writeStatus(ctx, &d); err != nil {
		return 0, err
	}
	// What was refused is no error to be tried again at once: the condition says
	// it, and the pause ends by itself.
	if err := p.act(ctx, &s, &d); err != nil && !errors.Is(err, errRefused) {
		return 0, err
	}
	after = resync
	if p.r.o.Bans != nil {
		after = bansPause // nobody tells of bans
	}
	if pause := p.book.paused(p.set.Generation, p.now); pause > 0 {
		after = min(after, pause)
	}
	if !d.next.IsZero() {
		after = min(after, max(time.Second, d.next.Sub(p.now)))
	}
	return after, nil
}

func (p *pass) addFinalizer(ctx context.Context) error {
	if controllerutil.ContainsFinalizer(p.set, v1alpha1.SetFinalizer) {
		return nil
	}
	base := p.set.DeepCopy()
	controllerutil.AddFinalizer(p.set, v1alpha1.SetFinalizer)
	return p.r.o.Client.Patch(ctx, p.set, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
}

// look returns the set's Proxies as the cache has them, and notes which ones it
// does not have.
func (p *pass) look(ctx context.Context) ([]*v1alpha1.Proxy, error) {
	p.unseen = p.book.unseen()
	var list v1alpha1.ProxyList
	err := p.r.o.Client.List(ctx, &list, client.InNamespace(p.set.Namespace),
		client.MatchingFields{indexOwner: string(p.set.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the Proxies of a ProxySet from the cache: %w", err)
	}
	own := make([]*v1alpha1.Proxy, len(list.Items))
	for i := range list.Items {
		own[i] = &list.Items[i] // shared with the cache: only read
	}
	if !p.book.stale(p.now) {
		return own, nil
	}
	live, strays, err := p.lookUncached(ctx, own)
	if err != nil {
		return nil, err
	}
	if len(strays) > 0 {
		p.event(nil, corev1.EventTypeWarning, "NotOwned", "List",
			"%s the label %s=%s and not this set's own, %s among them: the set leaves them alone; delete them, or take the label off",
			plural(len(strays), "Proxy has", "Proxies have"), v1alpha1.SetLabel, p.set.Name, strays[0])
	}
	p.unseen = p.book.found(live, own, p.now)
	return own, nil
}

const (
	// pageSize is how many Proxies one request for a list returns.
	pageSize = 500
	// maxPages bounds a list: far above what a set can have.
	maxPages = 100
	// maxMissing bounds single looks for Proxies that a list did not have; more
	// are looked for among all of the namespace.
	maxMissing = 100
)

// errTooMany marks an error that stays until there are fewer Proxies.
var errTooMany = fmt.Errorf("there are more than %d", maxPages*pageSize)

// eachUncached asks the API server for Proxies of the namespace.
func (p *pass) eachUncached(ctx context.Context, visit func(*metav1.PartialObjectMetadata), which ...client.ListOption) error {
	from := ""
	which = append(which, client.InNamespace(p.set.Namespace), client.Limit(pageSize))
	for range maxPages {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ProxyList"))
		asked, cancel := context.WithTimeout(ctx, apiTimeout)
		err := p.r.o.Reader.List(asked, list, append(slices.Clone(which), client.Continue(from))...)
		cancel()
		if err != nil {
			return err
		}
		for i := range list.Items {
			visit(&list.Items[i])
		}
		if from = list.Continue; from == "" {
			return nil
		}
	}
	return errTooMany
}

// owns says whether a Proxy is the set's own.
func (p *pass) owns(o *metav1.PartialObjectMetadata) bool {
	owner := ownerOf(o)
	return owner != nil && owner.UID == p.set.UID
}

// sayBlind writes why it is not known which Proxies the set has.
func (p *pass) sayBlind(ctx context.Context, why error) error {
	st := &p.set.Status
	d := decision{decided: st.Banned}
	d.counts = counts{
		live: int(st.Replicas), ready: int(st.ReadyReplicas), updated: int(st.UpdatedReplicas),
		banned: int(st.BannedReplicas), terminating: int(st.TerminatingReplicas),
	}
	d.reason, d.message = v1alpha1.ReasonHeldBack, fmt.Sprintf("nothing is made or deleted while it is not known which Proxies there are: %v", why)
	return p.writeStatus(ctx, &d)
}

// lookUncached asks the API server for the set's Proxies: by name, and whether
// they are being deleted. strays have the set's label and are not its own.
func (p *pass) lookUncached(ctx context.Context, cached []*v1alpha1.Proxy) (live map[string]bool, strays []string, err error) {
	live = map[string]bool{}
	labelled := client.MatchingLabels{v1alpha1.SetLabel: p.set.Name}
	err = p.eachUncached(ctx, func(o *metav1.PartialObjectMetadata) {
		if p.owns(o) {
			live[o.Name] = !o.DeletionTimestamp.IsZero()
		} else {
			strays = append(strays, o.Name)
		}
	}, labelled)
	if err != nil {
		return nil, nil, fmt.Errorf("listing Proxies with the label %s=%s: %w", v1alpha1.SetLabel, p.set.Name, err)
	}
	// One that the cache has and the list has not is gone, or lost its label.
	var missing []*v1alpha1.Proxy
	for _, px := range cached {
		if _, ok := live[px.Name]; !ok {
			missing = append(missing, px)
		}
	}
	if len(missing) > maxMissing {
		err = p.eachUncached(ctx, func(o *metav1.PartialObjectMetadata) {
			if p.owns(o) {
				live[o.Name] = !o.DeletionTimestamp.IsZero()
			}
		})
		if err != nil {
			return nil, nil, fmt.Errorf("listing the Proxies of namespace %s: %w", p.set.Namespace, err)
		}
		return live, strays, nil
	}
	for _, px := range missing {
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Proxy"))
		asked, cancel := context.WithTimeout(ctx, apiTimeout)
		err := p.r.o.Reader.Get(asked, client.ObjectKeyFromObject(px), o)
		cancel()
		switch {
		case err == nil && o.UID == px.UID:
			live[px.Name] = !o.DeletionTimestamp.IsZero()
		case client.IgnoreNotFound(err) != nil:
			return nil, nil, fmt.Errorf("reading a Proxy of a ProxySet: %w", err)
		}
	}
	return live, strays, nil
}

// state is what a plan needs to know.
func (p *pass) state(ctx context.Context, own []*v1alpha1.Proxy) state {
	spec := &p.set.Spec
	s := state{now: p.now, replicas: 1, provider: spec.Template.Spec.Provider, refused: p.book.refusal()}
	if spec.Replicas != nil {
		s.replicas = int(*spec.Replicas)
	}
	s.maxUnavailable, s.maxSurge = bounds(&spec.Update, s.replicas)
	if pl := spec.Template.Spec.Placement; pl != nil {
		s.host = pl.Host
	}
	s.bans.decided = p.set.Status.Banned
	if p.heedsBans() {
		s.bans.targets, s.bans.perHour = int(spec.Rotation.ByBan.Targets), int(spec.Rotation.ByBan.PerHour)
	}
	banned, known := p.r.banBook.counts(ctx, s.bans.counted(), p.now)
	s.bans.known = known
	s.members = make([]member, 0, len(own))
	for _, px := range own {
		m := memberOf(px, spec.Rotation)
		m.outdated = outdated(px, &spec.Template, p.hash)
		m.banned = banned.of(deskkeys.KeyName(px.Namespace, px.Name), m.exitIP)
		s.members = append(s.members, m)
	}
	patience := p.book.patience(p.hash, slices.ContainsFunc(s.members, func(m member) bool { return m.worked && !m.outdated }))
	for i := range s.members {
		m := &s.members[i]
		if unborn := m.created.Add(patience); !m.worked && !m.repairAt.IsZero() && unborn.After(m.repairAt) {
			m.repairAt = unborn
		}
	}
	s.members = p.book.apply(s.members, p.unseen)
	slices.SortFunc(s.members, func(a, b member) int { return byName(&a, &b) })
	return s
}

func (p *pass) heedsBans() bool {
	return p.set.Spec.Rotation != nil && p.set.Spec.Rotation.ByBan != nil
}

// bounds are maxUnavailable and maxSurge in Proxies. Both 0 would stop every
// replacement; admission refuses that, and percentages may come to it.
func bounds(u *v1alpha1.ProxySetUpdate, replicas int) (unavailable, surge int) {
	get := func(v *intstr.IntOrString, def int, up bool) int {
		if v == nil {
			return def
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(v, replicas, up)
		if err != nil || n < 0 {
			return 0 // admission refuses such
		}
		return n
	}
	unavailable, surge = min(replicas, get(u.MaxUnavailable, 0, false)), get(u.MaxSurge, 1, true)
	if unavailable == 0 && surge == 0 {
		unavailable = min(replicas, 1)
	}
	return unavailable, surge
}

// maxAsked bounds about how many Proxies the desk is asked.
const maxAsked = 256

// holders asks the desk who of those that may go is held, and reports whether
// anybody is: then the plan is to be made again.
func (p *pass) holders(ctx context.Context, d *decision) bool {
	if p.r.o.Holds == nil || len(d.asked) == 0 {
		return false
	}
	keys := map[string]*member{}
	var names []string
	for _, m := range d.asked[:min(len(d.asked), maxAsked)] {
		key := deskkeys.KeyName(p.set.Namespace, m.name)
		keys[key] = m
		names = append(names, key)
	}
	asked, cancel := context.WithTimeout(ctx, deskTimeout)
	defer cancel()
	held, err := p.r.o.Holds(asked, names)
	if err != nil {
		// Which is no reason to wait: each one waits for its own lease anyway.
		p.r.o.Log.Warn("who holds Proxies is not known", "proxyset", p.name(), "error", err)
		return false
	}
	anyone := false
	for key, is := range held {
		if m := keys[key]; m != nil && is {
			m.held, anyone = true, true
		}
	}
	return anyone
}

func (p *pass) name() string { return p.set.Namespace + "/" + p.set.Name }

// event records what was done to the set, or to one of its Proxies.
func (p *pass) event(px *v1alpha1.Proxy, kind, reason, action, format string, args ...any) {
	text := clip(fmt.Sprintf(format, args...))
	if px == nil {
		p.r.o.Events.Eventf(p.set, nil, kind, reason, action, "%s", text)
		return
	}
	p.r.o.Events.Eventf(p.set, px, kind, reason, action, "%s", text)
}

// clip makes a text fit: the API refuses an Event or condition with more.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "�")
	if len(s) <= maxText {
		return s
	}
	const more = " …"
	return strings.ToValidUTF8(s[:maxText-len(more)], "") + more
}

// tally is what is banned, by how many targets: keys and exit IPs.
type tally struct{ keys, exitIPs map[string]int }

// of is by how many targets a Proxy is banned: the same target may ban it and
// its exit IP, so the greater number counts.
func (t tally) of(key, exitIP string) int { return max(t.keys[key], t.exitIPs[exitIP]) }

func tallyOf(found []lease.BanCount) tally {
	t := tally{map[string]int{}, map[string]int{}}
	for _, b := range found {
		if b.Scope == lease.ScopeExitIP {
			t.exitIPs[b.ID] = b.Targets
		} else {
			t.keys[b.ID] = b.Targets
		}
	}
	return t
}

// creationRefused says whether an error means that the Kubernetes API will not
// make such a Proxy, however often it is asked.
func creationRefused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}
