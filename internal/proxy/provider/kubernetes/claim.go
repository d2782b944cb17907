package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

const (
	claimPrefix = "px-claim-"
	// labelPart tells claims from other Leases of ours.
	labelPart, partClaim = prefix + "part", "claim"

	annotationHolder = prefix + "holder"
	annotationBeat   = prefix + "beat"
	// annotationPeriod is in milliseconds; a Lease's own field has seconds.
	annotationPeriod = prefix + "period-ms"

	// maxPeriod is what is believed at most of another's period: a claim that
	// nobody renews must not hold up sweeps for years.
	maxPeriod = 24 * time.Hour
	// maxClaims bounds what one look reads.
	maxClaims = 10000
)

var holderForm = regexp.MustCompile(`^[a-z0-9]{8,32}$`)

// Claim implements [provider.Claimer]. A claim is a Lease of the namespace, one
// for each holder and provider, so that it is renewed by a single write and is
// there all the time. A renewal costs two calls: the write, and then the list,
// so that of two operators that begin at once one sees the other. Its steps are
// "kubernetes: claim", and "kubernetes: unclaim" for each that goes.
func (p *Provider) Claim(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
	if err := validClaim(c); err != nil {
		return nil, err
	}
	row := provider.HostClaims{Host: p.host}
	if row.Others, row.Err = p.claim(ctx, c); row.Err != nil {
		row.Others = nil
	}
	return []provider.HostClaims{row}, nil
}

func validClaim(c provider.Claim) error {
	switch {
	case c.Installation == "":
		return fault.New(fault.Invalid, "a claim's installation is empty")
	case !holderForm.MatchString(c.Holder):
		return fault.Errorf(fault.Invalid, "a claim's holder is %q: want 8 to 32 characters of a-z and 0-9", short(c.Holder))
	case c.Period <= 0 || c.Period%time.Millisecond != 0:
		return fault.Errorf(fault.Invalid, "a claim's period is %s: want whole milliseconds, above zero", c.Period)
	}
	return nil
}

// claimName is the Lease of a holder by this provider: two providers of one
// operator may share the namespace, and each takes back its own.
func (p *Provider) claimName(installation, holder string) string {
	return claimPrefix + TagOf(installation) + "-" + TagOf(p.name)[:8] + "-" + holder
}

func (p *Provider) claim(ctx context.Context, said provider.Claim) ([]provider.OtherClaim, error) {
	ctx, cancel, err := p.bound(ctx, "claim")
	if err != nil {
		return nil, err
	}
	defer cancel()
	c, err := p.connected(ctx)
	if err != nil {
		return nil, err
	}
	own := p.claimName(said.Installation, said.Holder)
	back := slices.Contains(said.Dead, said.Holder)
	if !back {
		if err := p.putClaim(ctx, c, own, said); err != nil {
			return nil, err
		}
	}
	leases, err := p.claims(ctx, c, said.Installation)
	if err != nil {
		return nil, err
	}
	others := map[string]provider.OtherClaim{}
	there := false
	for i := range leases {
		l := &leases[i]
		holder := l.Annotations[annotationHolder]
		switch {
		case l.Name == own && !back:
			there = true
		case l.Name == own, holder != said.Holder && slices.Contains(said.Dead, holder):
			if err := p.unclaim(ctx, c, l); err != nil {
				return nil, err
			}
		case holder == said.Holder: // of another provider of this operator
		default:
			one, err := readClaim(l)
			if err != nil {
				return nil, fault.Errorf(fault.Transient, "host %s: cannot tell whose claim the Lease %s is: delete it when no other operator uses this namespace: %w", p.host, l.Name, err)
			}
			// Several providers of one operator count each for themselves; the sum
			// grows with each of them.
			sum := others[holder]
			others[holder] = provider.OtherClaim{Holder: holder, Beat: sum.Beat + one.Beat, Period: max(sum.Period, one.Period)}
		}
	}
	if !there && !back {
		return nil, fault.Errorf(fault.Transient, "host %s: somebody removed the claim %s: leave Leases of that name alone", p.host, own)
	}
	out := make([]provider.OtherClaim, 0, len(others))
	for _, o := range others {
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b provider.OtherClaim) int { return cmp.Compare(a.Holder, b.Holder) })
	return out, nil
}

// putClaim renews the claim, or makes it.
func (p *Provider) putClaim(ctx context.Context, c *conn, name string, said provider.Claim) error {
	seconds := int32(min((said.Period+time.Second-1)/time.Second, 1<<31-1))
	renewed := metav1.NewMicroTime(p.now())
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{labelManaged: managedBy, labelInstallation: TagOf(said.Installation), labelPart: partClaim},
			Annotations: map[string]string{
				annotationHolder: said.Holder,
				annotationBeat:   strconv.FormatUint(said.Beat, 10),
				annotationPeriod: strconv.FormatInt(said.Period.Milliseconds(), 10),
			},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &said.Holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": lease.Labels, "annotations": lease.Annotations}, "spec": lease.Spec})
	if err != nil {
		return fault.Errorf(fault.Permanent, "a claim cannot be written: %w", err)
	}
	if err := provider.Step(ctx, "kubernetes: claim"); err != nil {
		return err
	}
	api := c.core.CoordinationV1().Leases(p.conf.namespace)
	_, err = api.Patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{})
	if missing(err) {
		lease.Name = name
		_, err = api.Create(ctx, lease, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return fault.Errorf(fault.Transient, "host %s: Lease %s was made by another call at the same time", p.host, name)
		}
	}
	return p.failed("write Lease "+name, err)
}

// claims lists the claims of an installation.
func (p *Provider) claims(ctx context.Context, c *conn, installation string) ([]coordinationv1.Lease, error) {
	var all []coordinationv1.Lease
	o := metav1.ListOptions{
		LabelSelector: selectManaged + "," + labelPart + "=" + partClaim + "," + labelInstallation + "=" + TagOf(installation), Limit: page,
	}
	for len(all) < maxClaims {
		l, err := c.core.CoordinationV1().Leases(p.conf.namespace).List(ctx, o)
		if err != nil {
			return nil, p.failed("list Leases", err)
		}
		all = append(all, l.Items...)
		if l.Continue == "" {
			return all, nil
		}
		o.Continue = l.Continue
	}
	return nil, fault.Errorf(fault.Permanent, "host %s: there are more than %d claims: delete the Leases %s* of operators that are gone", p.host, maxClaims, claimPrefix)
}

func readClaim(l *coordinationv1.Lease) (provider.OtherClaim, error) {
	o := provider.OtherClaim{Holder: l.Annotations[annotationHolder]}
	beat, err := strconv.ParseUint(l.Annotations[annotationBeat], 10, 64)
	if err != nil {
		return o, fmt.Errorf("annotation %s is no number", annotationBeat)
	}
	period, err := strconv.ParseInt(l.Annotations[annotationPeriod], 10, 64)
	if err != nil || period <= 0 || !holderForm.MatchString(o.Holder) {
		return o, fmt.Errorf("annotation %s or %s has no valid value", annotationPeriod, annotationHolder)
	}
	o.Beat, o.Period = beat, time.Duration(min(period, maxPeriod.Milliseconds()))*time.Millisecond
	return o, nil
}

// unclaim removes a claim as it was read; one that is gone is success.
func (p *Provider) unclaim(ctx context.Context, c *conn, l *coordinationv1.Lease) error {
	if err := provider.Step(ctx, "kubernetes: unclaim"); err != nil {
		return err
	}
	err := c.core.CoordinationV1().Leases(p.conf.namespace).Delete(ctx, l.Name, precisely(l.UID, "", nil))
	if missing(err) {
		return nil
	}
	return p.failed("delete Lease "+l.Name, err)
}
