package proxyprovider

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/monitor"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/sweep"
)

const (
	// maxHosts, maxItems and maxUnlisted bound what is shown of each list.
	maxHosts    = 500
	maxBytes    = 450 << 10 // of all rows as JSON
	maxItems    = 50
	maxUnlisted = 50
	// maxRow bounds the text of one row: 500 of them are in one object.
	maxRow = 256
	// maxQuote bounds what a text quotes of an error, so that what follows it
	// (the way out) is not cut off.
	maxQuote = 400
)

// known is all that a status is made of.
type known struct {
	state   *State
	users   users // of a provider that left the file
	check   monitor.Report
	checked bool
	sweep   sweep.Report
	swept   bool
	now     metav1.Time
}

// write writes what is known into the object's status, when that differs.
func (r *Reconciler) write(ctx context.Context, o *v1alpha1.ProxyProvider, in known) error {
	before := o.Status.DeepCopy()
	summarize(o, in)
	if equality.Semantic.DeepEqual(before, &o.Status) {
		return nil
	}
	return r.o.Client.Status().Update(ctx, o)
}

// summarize is the rule: the status of an object from what is known. Before the
// first report of this process ends, what an earlier one found stays.
func summarize(o *v1alpha1.ProxyProvider, in known) {
	st := &o.Status
	switch {
	case in.state == nil:
		st.Hosts, st.HostsOK = nil, ""
		if leftBehind(o) == 0 {
			st.Sweep = nil
		}
	default:
		st.Kind = in.state.Kind
		if in.checked {
			st.Hosts, st.HostsOK = hostsOf(in.check)
		}
		if in.swept {
			st.Sweep = sweepOf(in.sweep, st.Sweep)
		}
	}
	found := []verdict{configured(o, in), reachable(in), clean(o, in)}
	for i, kind := range []string{v1alpha1.ConditionConfigured, v1alpha1.ConditionReachable, v1alpha1.ConditionClean} {
		c := found[i]
		apimeta.SetStatusCondition(&st.Conditions, metav1.Condition{
			Type: kind, Status: c.status, Reason: c.reason, Message: clip(c.message, maxText),
			ObservedGeneration: o.Generation, LastTransitionTime: in.now,
		})
	}
	first := firstToMend(o, in, found)
	st.Reason, st.Message = cmp.Or(first.detail, first.reason), clip(first.message, maxText)
}

// verdict is what one condition says; detail is a sharper word than its reason.
type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
	detail          string
}

func isSo(message string) verdict {
	return verdict{status: metav1.ConditionTrue, reason: v1alpha1.ReasonOK, message: message}
}

func not(reason, format string, args ...any) verdict {
	return verdict{status: metav1.ConditionFalse, reason: reason, message: fmt.Sprintf(format, args...)}
}

func unknown(reason, format string, args ...any) verdict {
	return verdict{status: metav1.ConditionUnknown, reason: reason, message: fmt.Sprintf(format, args...)}
}

// firstToMend chooses what stands in the columns Reason and Message: why the
// object does not go, else the first condition that is False, else the first of
// which something keeps us from saying. A kind without a check is no trouble,
// and a sweep that did not end yet holds nobody up.
func firstToMend(o *v1alpha1.ProxyProvider, in known, found []verdict) verdict {
	if !o.DeletionTimestamp.IsZero() {
		return not(v1alpha1.ReasonAbandoned, "it is being deleted and stays, since %s; without its finalizer it goes, and a sweep then takes the instances"+
			" for leftovers and removes them when its grace has passed: kubectl patch proxyprovider %s --type=merge -p '{\"metadata\":{\"finalizers\":null}}'",
			abandonedText(o, in), o.Name)
	}
	for _, v := range found {
		if v.status == metav1.ConditionFalse {
			return v
		}
	}
	for _, v := range found {
		if v.status == metav1.ConditionUnknown && v.reason != v1alpha1.ReasonNoCheck && v.reason != v1alpha1.ReasonNotSwept {
			return v
		}
	}
	return isSo("")
}

func configured(o *v1alpha1.ProxyProvider, in known) verdict {
	switch {
	case in.state == nil:
		why := ""
		if n := len(o.Status.Abandoned); n > 0 {
			why = "; " + abandonedText(o, in)
		}
		if leftBehind(o) > 0 {
			why += "; " + leftBehindText(o)
		}
		if n := in.users.count; n > 0 {
			more := ""
			if n > len(in.users.first) {
				more = ", …"
			}
			why += fmt.Sprintf("; %d Proxies name it (%s%s): put it back, or delete them", n, named(in.users.first), more)
		}
		return not(v1alpha1.ReasonRemoved, "the providers file does not have it any more%s", why)
	case in.state.Err != nil:
		return not(v1alpha1.ReasonSectionRefused, "it is disabled until its section of the providers file is mended: %s", quote(in.state.Err))
	case in.state.Refused != nil:
		return not(v1alpha1.ReasonFileRefused, "the providers file cannot be used, and what it said before is in force: %s", quote(in.state.Refused))
	}
	return isSo("its section of the providers file is in force")
}

func quote(err error) string { return clip(err.Error(), maxQuote) }

func reachable(in known) verdict {
	switch {
	case in.state == nil:
		return unknown(v1alpha1.ReasonRemoved, "a provider that the providers file does not have is not checked")
	case !in.checked:
		return unknown(v1alpha1.ReasonNotChecked, "no check has ended since the operator started")
	case in.check.Unsupported:
		return unknown(v1alpha1.ReasonNoCheck, "providers of this kind have no check")
	case in.check.Err != nil:
		return not(v1alpha1.ReasonCheckFailed, "its hosts cannot be checked (%s): %s", fault.Of(in.check.Err).Meaning().Reason, quote(in.check.Err))
	}
	var bad []monitor.Host
	for _, h := range in.check.Hosts {
		if h.Reason != provider.ReasonOK {
			bad = append(bad, h)
		}
	}
	if len(bad) == 0 {
		return isSo(fmt.Sprintf("%d of %d hosts are well", len(in.check.Hosts), len(in.check.Hosts)))
	}
	first := bad[0]
	text := fmt.Sprintf("%s: %s", first.Reason, clip(first.Message, maxQuote))
	if !namesHost(first.Message, first.Host) {
		text = fmt.Sprintf("host %s: %s", first.Host, text)
	}
	if len(bad) > 1 {
		others := make([]string, 0, len(bad)-1)
		for _, h := range bad[1:] {
			others = append(others, h.Host+" ("+h.Reason+")")
		}
		text += "; also " + named(others)
	}
	v := not(v1alpha1.ReasonHostsInTrouble, "%s", text)
	v.detail = clip(first.Reason, maxField)
	return v
}

// namesHost tells whether a row's message begins with the host's name, as
// errors of providers do.
func namesHost(message, host string) bool {
	message = strings.TrimPrefix(message, "host ")
	for _, start := range []string{strconv.Quote(host), host} {
		rest, found := strings.CutPrefix(message, start)
		if found && (strings.HasPrefix(rest, ":") || strings.HasPrefix(rest, " ")) {
			return true
		}
	}
	return false
}

// hostsOf are the rows of a report, those in trouble first.
func hostsOf(r monitor.Report) (rows []v1alpha1.ProviderHost, ok string) {
	if r.Unsupported || len(r.Hosts) == 0 {
		return nil, ""
	}
	well := 0
	for _, h := range r.Hosts {
		if h.Reason == provider.ReasonOK {
			well++
		}
		rows = append(rows, v1alpha1.ProviderHost{
			Host: clip(h.Host, maxRow), Reason: clip(h.Reason, maxField), Message: clip(h.Message, maxRow),
			Version: clip(h.Version, maxField), FreeBytes: h.FreeBytes,
			LastCheck: seconds(metav1.NewTime(h.Checked)), Since: seconds(metav1.NewTime(h.Since)),
		})
	}
	slices.SortStableFunc(rows, func(a, b v1alpha1.ProviderHost) int {
		return cmp.Or(cmp.Compare(rank(a.Reason == provider.ReasonOK), rank(b.Reason == provider.ReasonOK)), cmp.Compare(a.Host, b.Host))
	})
	ok = fmt.Sprintf("%d/%d", well, len(r.Hosts))
	size := 0
	for n := range rows {
		if size += bytesOf(rows[n]); n == maxHosts || size > maxBytes {
			return rows[:n], ok
		}
	}
	return rows, ok
}

func rank(last bool) int {
	if last {
		return 1
	}
	return 0
}

// seconds is a time as it is stored: what is finer would differ for ever.
func seconds(t metav1.Time) metav1.Time { return t.Rfc3339Copy() }
