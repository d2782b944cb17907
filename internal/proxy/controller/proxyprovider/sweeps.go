package proxyprovider

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/proxy/sweep"
)

// clean says whether leftovers wait for a person, the gravest thing first.
func clean(o *v1alpha1.ProxyProvider, in known) verdict {
	switch {
	case (in.state == nil || !in.swept) && len(o.Status.Abandoned) > 0:
		return not(v1alpha1.ReasonAbandoned, "%s", abandonedText(o, in))
	case in.state == nil && leftBehind(o) > 0:
		return not(v1alpha1.ReasonOrphans, "%s", leftBehindText(o))
	case in.state == nil:
		return unknown(v1alpha1.ReasonRemoved, "a provider that the providers file does not have is not swept")
	case !in.swept:
		return unknown(v1alpha1.ReasonNotSwept, "no sweep has ended since the operator started")
	}
	s := in.sweep
	due := s.Count(true, sweep.Due) + s.Count(false, sweep.Due)
	failed := first(s, sweep.Failed)
	unreadable := first(s, sweep.Unreadable)
	switch {
	case alive(s) != nil:
		c := alive(s)
		return not(v1alpha1.ReasonIdentityConflict, "another operator with this installation's identity lives (holder %s, seen on host %s): nothing is removed;"+
			" end the one that is not meant to be, as of a restored cluster or a copied state folder", clip(c.Holder, 64), clip(c.Host, 64))
	case s.Hash != "":
		lately := ""
		if s.Err != nil {
			lately = "; that is of an earlier sweep, and the last one could not look: " + clip(s.Err.Error(), maxRow)
		}
		return not(v1alpha1.ReasonSweepHeld, "%s; look at status.sweep.items, and when all of that shall go: kubectl annotate proxyprovider %s %s=%s --overwrite%s",
			clip(cmp.Or(s.Fuse, "the sweep would remove too much at once"), maxQuote), o.Name, v1alpha1.ReleaseSweepAnnotation, s.Hash, lately)
	case s.Err != nil:
		return unknown(v1alpha1.ReasonSweepFailed, "the sweep could not look, and nothing was removed: %s", quote(s.Err))
	case failed != nil:
		n := s.Count(true, sweep.Failed) + s.Count(false, sweep.Failed)
		return not(v1alpha1.ReasonOrphans, "%d things could not be removed, and are tried again; the first is %s", n, describe(failed))
	case unreadable != nil:
		return not(v1alpha1.ReasonUnknown, "%d instances cannot be read, and are left alone; look at them at their hosts; the first is %s", s.Count(true, sweep.Unreadable), describe(unreadable))
	case len(o.Status.Abandoned) > 0:
		return not(v1alpha1.ReasonAbandoned, "%s", abandonedText(o, in))
	case s.DryRun && due > 0:
		return not(v1alpha1.ReasonDryRun, "%d leftovers would be removed, and sweeps only report them: start the operator without --gc-dry-run, or remove them by hand", due)
	case len(s.Unlisted) > 0:
		return unknown(v1alpha1.ReasonSweepFailed, "%d hosts did not answer the sweep (%s), and nothing was removed there", len(s.Unlisted), named(unlisted(s)))
	}
	switch held := first(s, sweep.Held); {
	case held != nil && len(s.Conflicts) == 0:
		return unknown(v1alpha1.ReasonSweepFailed, "removals are held back; the first is %s", describe(held))
	case held != nil:
		return unknown(v1alpha1.ReasonIdentityConflict, "removals wait until it is known whether the claim of another operator is still renewed; the first is %s", describe(held))
	}
	if n := s.Orphans() + s.Leftovers(); n > 0 {
		v := isSo(fmt.Sprintf("%d leftovers go when their grace has passed", n))
		v.reason = v1alpha1.ReasonOrphans
		return v
	}
	return isSo("there are no leftovers")
}

func alive(s sweep.Report) *sweep.Conflict {
	for i := range s.Conflicts {
		if s.Conflicts[i].Alive {
			return &s.Conflicts[i]
		}
	}
	return nil
}

func first(s sweep.Report, v sweep.Verdict) *sweep.Item {
	for i := range s.Items {
		if s.Items[i].Verdict == v {
			return &s.Items[i]
		}
	}
	return nil
}

func describe(it *sweep.Item) string {
	text := fmt.Sprintf("%s %s on host %s", clip(it.What, 64), clip(it.ID, maxField), clip(it.Host, 64))
	if it.Message != "" {
		text += ": " + clip(it.Message, maxQuote)
	}
	return text
}

func unlisted(s sweep.Report) (hosts []string) {
	for _, h := range s.Unlisted {
		hosts = append(hosts, h.Host)
	}
	return hosts
}

// abandonedText says what is written down and the ways out.
func abandonedText(o *v1alpha1.ProxyProvider, in known) string {
	a := o.Status.Abandoned
	if len(a) == 0 {
		return ""
	}
	names := make([]string, 0, 3)
	for _, one := range a[:min(len(a), 3)] {
		names = append(names, one.Proxy+" "+cmp.Or(one.ProviderID, one.Host))
	}
	text := clip(strings.Join(names, ", "), maxNames)
	if len(a) > len(names) {
		text += ", …"
	}
	text = fmt.Sprintf("%d instances were left to a person (%s)", len(a), text)
	uid := clip(a[0].UID, 64)
	switch {
	case in.state == nil:
		return text + ", and " + notSwept + ": " + putBackOrStrike(o.Name, 0, uid)
	case in.state.Err != nil:
		text += ": to have one removed, mend the provider's section first, and then"
	case in.swept && in.sweep.DryRun:
		text += ": to have one removed, start the operator without --gc-dry-run, and then"
	default:
		text += ": to have one removed"
	}
	return fmt.Sprintf("%s: kubectl annotate proxyprovider %s %s=%s --overwrite", text, o.Name, v1alpha1.RemoveAbandonedAnnotation, uid)
}

// maxNames bounds the instances that a text names, so that the way out behind
// them is not cut off.
const maxNames = 240

// notSwept is why nobody removes what a provider left.
const notSwept = "no sweep removes them, since the providers file does not have this provider"

// putBackOrStrike are the ways out for a row of a provider that left the file.
// The row is tested, since rows move up when another one is taken out.
func putBackOrStrike(name string, row int, uid string) string {
	return fmt.Sprintf("put it back first; or remove the machine by hand and take its row out: kubectl patch proxyprovider %s --subresource=status --type=json"+
		` -p '[{"op":"test","path":"/status/abandoned/%d/uid","value":"%s"},{"op":"remove","path":"/status/abandoned/%d"}]'`, name, row, clip(uid, 64), row)
}

// leftBehind is how many orphans the last sweep left that is written in the
// object: of a provider that left the file nobody else knows of them.
func leftBehind(o *v1alpha1.ProxyProvider) int32 {
	if o.Status.Sweep == nil {
		return 0
	}
	return o.Status.Sweep.Orphans
}

func leftBehindText(o *v1alpha1.ProxyProvider) string {
	return fmt.Sprintf("its last sweep left %d orphans (status.sweep.items has them): put it back to have them removed;"+
		" or remove them by hand, and then: kubectl delete proxyprovider %s", leftBehind(o), o.Name)
}

// urgency orders items: what needs a person, then what goes on by itself, then
// what is over.
func urgency(v string) int {
	return slices.Index([]string{
		string(sweep.Held), string(sweep.Failed), string(sweep.Unreadable), string(sweep.Abandoned),
		string(sweep.Due), string(sweep.Removing), string(sweep.Waiting), string(sweep.Removed),
	}, v)
}

// sweepOf is a report as it is shown. One that could not look carries what an
// earlier one of this process found; when there was none, what is shown stays.
func sweepOf(s sweep.Report, shown *v1alpha1.SweepReport) *v1alpha1.SweepReport {
	if s.Err != nil && len(s.Items) == 0 && shown != nil {
		out := shown.DeepCopy()
		out.Time, out.DryRun, out.Message = seconds(metav1.NewTime(s.Time)), s.DryRun, couldNotLook(s.Err)
		return out
	}
	out := &v1alpha1.SweepReport{
		Time: seconds(metav1.NewTime(s.Time)), DryRun: s.DryRun, Hash: s.Hash,
		Instances: int32(s.Instances), Orphans: int32(s.Orphans()), Leftovers: int32(s.Leftovers()),
		Removed: int32(s.Count(true, sweep.Removed) + s.Count(false, sweep.Removed)),
	}
	for _, h := range s.Unlisted[:min(len(s.Unlisted), maxUnlisted)] {
		text := h.Host
		if h.Err != nil {
			text += ": " + h.Err.Error()
		}
		out.Unlisted = append(out.Unlisted, clip(text, maxRow))
	}
	for _, it := range s.Items {
		shown := v1alpha1.SweepItem{
			What: clip(it.What, 64), Host: clip(it.Host, maxRow), ID: clip(it.ID, maxRow),
			Verdict: string(it.Verdict), Message: clip(it.Message, maxRow),
		}
		if it.Name != "" {
			shown.Proxy = clip(it.Namespace+"/"+it.Name, maxRow)
		}
		out.Items = append(out.Items, shown)
	}
	slices.SortStableFunc(out.Items, func(a, b v1alpha1.SweepItem) int {
		return cmp.Compare(urgency(a.Verdict), urgency(b.Verdict))
	})
	if more := len(out.Items) - maxItems; more > 0 {
		out.Items = out.Items[:maxItems]
		out.Message = fmt.Sprintf("%d more things were found", more)
	}
	switch {
	case s.Err != nil:
		out.Message = couldNotLook(s.Err)
	case s.Fuse != "":
		out.Message = clip(s.Fuse, maxQuote)
	}
	return out
}

func couldNotLook(err error) string {
	return "the sweep could not look, and what is here is what an earlier one found: " + quote(err)
}
