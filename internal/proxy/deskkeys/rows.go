package deskkeys

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// Attributes of a key: what takers may ask for and are told. Those that are not
// known are absent.
const (
	AttrAddress  = "address"
	AttrPort     = "port"
	AttrProtocol = "protocol"
	AttrProvider = "provider"
	AttrHost     = "host"
	AttrZone     = "zone"
	AttrRegion   = "region"
	AttrExitIP   = "exitIP"
	// AttrLeaks is [NoLeaks] or the headers, with commas between them, that tell
	// sites of a proxy.
	AttrLeaks = "leaks"
	// AttrLabel and a label's name have its value.
	AttrLabel = "label:"
)

// NoLeaks is [AttrLeaks] of a Proxy whose headers tell nothing.
const NoLeaks = "none"

const (
	// maxLabels bounds the labels that become attributes, by their names' order:
	// every answer about the key repeats them.
	maxLabels = 32
	// maxUnfit bounds the reason why a key is not handed out, in bytes.
	maxUnfit = 256
	// defaultDrain is the drainTimeout of a pool that names none, defaultNewShare
	// its newShare.
	defaultDrain    = 10 * time.Minute
	defaultNewShare = 10
)

// KeyName is the desk's name of a Proxy, and PoolName that of a pool. A
// namespace has no dot, so the first one parts the two.
func KeyName(namespace, name string) string { return namespace + "." + name }

// PoolName is the desk's name of a pool.
func PoolName(namespace, name string) string { return namespace + "." + name }

// Parts is the reverse of both; a name without a dot is none of ours.
func Parts(of string) (namespace, name string, ok bool) { return strings.Cut(of, ".") }

// view is a pool as rows see it.
type view struct {
	pool     lease.Pool
	selector labels.Selector // matches nothing when it cannot be read
	// clean is set for a pool that has no Proxy that leaks, or may.
	clean bool
	drain time.Duration
	err   error
}

// has reports whether a Proxy is one of the pool's, or is one by its labels and
// is refused for its leaks.
func (v *view) has(px *v1alpha1.Proxy) (member, refused bool) {
	if !v.selector.Matches(labels.Set(px.Labels)) {
		return false, false
	}
	leaks := px.Status.Leaks
	refused = v.clean && (leaks == nil || len(*leaks) > 0)
	return !refused, refused
}

// viewsOf returns the pools of a namespace: default, with or without an object,
// and those of all other objects, by name.
func viewsOf(namespace string, objects []v1alpha1.ProxyPool) []view {
	all := make([]view, 0, len(objects)+1)
	implicit := true
	for i := range objects {
		implicit = implicit && objects[i].Name != v1alpha1.DefaultPool
		all = append(all, viewOf(&objects[i]))
	}
	if implicit {
		all = append(all, viewOf(&v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.DefaultPool}}))
	}
	slices.SortFunc(all, func(a, b view) int { return strings.Compare(a.pool.Name, b.pool.Name) })
	return all
}

// viewOf reads an object. What admission fills in may be missing: the implicit
// pool has none of it, and objects may be older than a default.
func viewOf(o *v1alpha1.ProxyPool) view {
	s := &o.Spec
	var errs []error
	span := func(field string, d v1alpha1.Duration, otherwise time.Duration) time.Duration {
		if d == "" {
			return otherwise
		}
		v, err := time.ParseDuration(string(d))
		if err != nil { // admission refuses it
			errs = append(errs, fault.Errorf(fault.Invalid, "%s: %w", field, err))
		}
		return v
	}
	v := view{
		pool: lease.Pool{
			Name: PoolName(o.Namespace, o.Name), Kind: lease.Managed,
			TTL:      span("leaseTime.default", s.LeaseTime.Default, 0),
			MaxTTL:   span("leaseTime.max", s.LeaseTime.Max, lease.MaxTTL),
			Cooldown: span("cooldown", s.Cooldown, 0),
			Ban: lease.Ban{
				Initial: span("banCooldown.initial", s.BanCooldown.Initial, lease.DefaultBan().Initial),
				Factor:  float64(s.BanCooldown.Factor),
				Max:     span("banCooldown.max", s.BanCooldown.Max, lease.DefaultBan().Max),
			},
			Scope:    lease.Scope(s.Scope),
			InFlight: int(s.InFlight),
			NewShare: defaultNewShare,
			Sites:    s.Targets == v1alpha1.TargetsBySite,
		},
		clean:    s.Leaks == v1alpha1.LeaksRefuse,
		selector: labels.Everything(),
		drain:    span("drainTimeout", s.DrainTimeout, defaultDrain),
	}
	if s.NewShare != nil {
		v.pool.NewShare = int(*s.NewShare)
	}
	if v.pool.Ban.Factor == 0 {
		v.pool.Ban.Factor = lease.DefaultBan().Factor
	}
	v.pool = v.pool.WithDefaults()
	if s.Selector != nil && o.Name != v1alpha1.DefaultPool {
		var err error
		if v.selector, err = metav1.LabelSelectorAsSelector(s.Selector); err != nil {
			v.selector = labels.Nothing()
			errs = append(errs, fault.WithCode(fault.Errorf(fault.Invalid, "the selector cannot be read, so the pool is empty: %w", err), CodeSelector))
		}
	}
	v.err = errors.Join(errs...)
	return v
}

// CodeSelector is the code of the error of a selector that cannot be read.
const CodeSelector = "selector"

// settings are the parts of a pool's row that its object decides.
func settings(p lease.Pool) lease.Pool {
	p.Revision, p.By, p.At, p.Hooks = 0, "", time.Time{}, lease.Hooks{}
	return p
}

// putOf is the row of a Proxy, without its epoch.
func putOf(px *v1alpha1.Proxy, pools []string) lease.PutKey {
	return lease.PutKey{
		Key: KeyName(px.Namespace, px.Name), UID: string(px.UID), Pools: pools,
		Attributes: attributesOf(px), ExitIP: px.Status.ExitIP, Unfit: unfit(px), Weight: weightOf(&px.Status),
	}
}

// weightOf is how often a Proxy is to be used beside others, in percent: the
// slower it is and the more of its checks fail, the less. What is not known does
// not count against it.
func weightOf(st *v1alpha1.ProxyStatus) int {
	weight := fullWeight
	switch ms := st.LatencyMilliseconds; {
	case ms <= 500:
	case ms <= 1000:
		weight = 70
	case ms <= 2000:
		weight = 50
	case ms <= 4000:
		weight = 25
	default:
		weight = 10
	}
	if st.ChecksPassedPercent != nil {
		weight = weight * int(*st.ChecksPassedPercent) / 100
	}
	return min(max(weight, 1), fullWeight)
}

// fullWeight is the weight of a Proxy that is at its best; the desk has 0 for
// it as well.
const fullWeight = 100

// labelRegion is where Kubernetes says in which region something is.
const labelRegion = "topology.kubernetes.io/region"

func attributesOf(px *v1alpha1.Proxy) map[string]string {
	st := &px.Status
	a := map[string]string{
		AttrAddress: st.Address, AttrProtocol: string(px.Spec.Protocol), AttrProvider: px.Spec.Provider,
		AttrHost: st.Host, AttrExitIP: st.ExitIP,
	}
	if st.Port != 0 {
		a[AttrPort] = strconv.Itoa(int(st.Port))
	}
	if px.Spec.Placement != nil {
		a[AttrZone] = px.Spec.Placement.Zone
	}
	if a[AttrRegion] = px.Labels[labelRegion]; a[AttrRegion] == "" {
		a[AttrRegion] = a[AttrZone]
	}
	if st.Leaks != nil {
		if a[AttrLeaks] = NoLeaks; len(*st.Leaks) > 0 {
			a[AttrLeaks] = strings.Join(*st.Leaks, ",")
		}
	}
	maps.DeleteFunc(a, func(_, value string) bool { return value == "" })
	for i, name := range slices.Sorted(maps.Keys(px.Labels)) {
		if i == maxLabels {
			break
		}
		a[AttrLabel+name] = px.Labels[name]
	}
	return a
}

// unfit says why a Proxy must not be handed out; "" when it may be. That is
// what its condition Ready says, also for one whose provider cannot be asked
// and whose own checks pass.
func unfit(px *v1alpha1.Proxy) string {
	ready := apimeta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case !px.DeletionTimestamp.IsZero():
		return "draining: the Proxy is being deleted"
	case ready == nil:
		return "the operator has not looked at it yet"
	case ready.Status != metav1.ConditionTrue:
		return tidy(fmt.Sprintf("%s (%s): %s", px.Status.Phase, ready.Reason, ready.Message), maxUnfit)
	case px.Status.Address == "":
		return "it has no address"
	}
	return ""
}

// tidy makes one line of valid UTF-8 of at most that many bytes.
func tidy(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == unicode.ReplacementChar:
			return '?'
		case unicode.IsControl(r):
			return ' '
		}
		return r
	}, s)
	if len(s) <= most {
		return s
	}
	const more = "…"
	s = s[:most-len(more)]
	return strings.ToValidUTF8(s, "") + more
}

// digest is over the parts of a row that we write.
type digest [sha256.Size]byte

func digestOf(p lease.PutKey) digest {
	h := sha256.New()
	weight := p.Weight
	if weight == 0 {
		weight = fullWeight
	}
	write(h, p.Key, p.UID, p.ExitIP, p.Unfit, strconv.Itoa(weight))
	write(h, slices.Sorted(slices.Values(p.Pools))...)
	for _, name := range slices.Sorted(maps.Keys(p.Attributes)) {
		write(h, name, p.Attributes[name])
	}
	return digest(h.Sum(nil))
}

// digestOfRow is that of a row as it was read.
func digestOfRow(k *lease.Key) digest {
	return digestOf(lease.PutKey{Key: k.Name, UID: k.UID, Pools: k.Pools, Attributes: k.Attributes, ExitIP: k.ExitIP, Unfit: k.Unfit, Weight: k.Weight})
}

// write adds texts with their lengths and number, so that no two lists hash
// alike.
func write(h hash.Hash, all ...string) {
	var n [8]byte
	put := func(v int) {
		binary.BigEndian.PutUint64(n[:], uint64(v))
		_, _ = h.Write(n[:]) // a hash never fails
	}
	put(len(all))
	for _, s := range all {
		put(len(s))
		_, _ = h.Write([]byte(s))
	}
}
