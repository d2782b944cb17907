package sweep

import (
	"cmp"
	"fmt"
	"strings"

	"fleetdesk/internal/core/fault"
)

// The reasons of events.
const (
	EventOrphanRemoved    = "OrphanRemoved"
	EventAbandonedRemoved = "AbandonedRemoved"
	EventLeftoversRemoved = "LeftoversRemoved"
	EventSweepHeld        = "SweepHeld"
	EventIdentityConflict = "IdentityConflict"
)

const (
	// maxNamed is how many leftovers an event names.
	maxNamed = 10
	// maxHashes bounds the held sets that are remembered as told.
	maxHashes = 256
	// maxLine is how many instances of a held set one line of the log names.
	maxLine = 100
	// maxErrs bounds the errors that are remembered as logged.
	maxErrs = 32
)

// ReleaseCommand is what a person types to let the sweep of that provider
// remove the set of that hash.
func ReleaseCommand(providerName, hash string) string {
	return fmt.Sprintf("kubectl annotate proxyprovider %s crawl.example.com/release-sweep=%s --overwrite", providerName, hash)
}

// removed tells of one thing that is gone.
func (w *work) removed(f *finding) {
	w.s.m.removed.WithLabelValues(w.name, f.What).Inc()
	w.s.o.Log.Info("a sweep removed something", "provider", w.name, "host", f.Host, "what", f.What,
		"instance", f.ID, "proxy", f.Namespace+"/"+f.Name, "uid", f.UID, "abandoned", f.Left)
	if f.What != Instance {
		// The sweep's end tells of all of them.
		return
	}
	is := "is removed"
	if f.Message != "" {
		is = f.Message
	}
	if f.Left {
		w.s.o.Event(w.name, false, EventAbandonedRemoved,
			fmt.Sprintf("%s on host %s, abandoned by Proxy %s/%s, %s: a person asked for it", f.ID, f.Host, f.Namespace, f.Name, is))
		return
	}
	w.s.o.Event(w.name, false, EventOrphanRemoved,
		fmt.Sprintf("%s on host %s %s: its Proxy %s/%s (%s) does not exist", f.ID, f.Host, is, f.Namespace, f.Name, f.UID))
}

// struck tells of an abandoned instance that went without this operator.
func (w *work) struck(f *finding) {
	w.s.o.Log.Info("an abandoned instance is gone", "provider", w.name, "host", f.Host, "instance", f.ID, "uid", f.UID)
	w.s.o.Event(w.name, false, EventAbandonedRemoved,
		fmt.Sprintf("the abandoned instance %s of Proxy UID %s is gone, and its record with it", cmp.Or(f.ID, "without a known id"), f.UID))
}

// tell tells of the sweep as a whole.
func (w *work) tell() {
	r := &w.report
	for _, holder := range w.newcomers {
		w.s.o.Log.Error("another live operator has this installation's identity: nothing is removed", "provider", w.name, "holder", holder)
		w.s.o.Event(w.name, true, EventIdentityConflict, fmt.Sprintf(
			"operator %s is alive and has this installation's identity (a restored cluster, or a copied data directory): this one is %s and removes nothing until one of them stops", holder, w.s.o.Holder))
	}
	w.s.m.conflicts.WithLabelValues(w.name).Set(float64(w.alive))
	w.s.m.runs.WithLabelValues(w.name, r.result()).Inc()
	if w.warn("a sweep could not look", r.Err); r.Err != nil {
		return
	}
	held := 0.0
	if r.Hash != "" {
		held = 1
		w.tellHeld()
	}
	w.tellLeftovers()
	w.s.m.held.WithLabelValues(w.name).Set(held)
	w.s.m.orphans.WithLabelValues(w.name).Set(float64(r.Orphans()))
	w.s.m.leftovers.WithLabelValues(w.name).Set(float64(r.Leftovers()))
	w.s.m.abandoned.WithLabelValues(w.name).Set(float64(r.AbandonedCount()))
	w.s.m.success.WithLabelValues(w.name).Set(float64(r.Time.UnixNano()) / 1e9)
	if len(r.Items) > 0 {
		w.s.o.Log.Info("a sweep found leftovers", "provider", w.name, "instances", r.Instances,
			"orphans", r.Orphans(), "leftovers", r.Leftovers(), "abandoned", r.AbandonedCount(),
			"unreadable", r.Count(true, Unreadable),
			"removed", r.Count(true, Removed)+r.Count(false, Removed),
			"failed", r.Count(true, Failed)+r.Count(false, Failed),
			"held", r.Count(true, Held)+r.Count(false, Held),
			"unlisted", len(r.Unlisted), "dryRun", r.DryRun)
	}
}

// warn logs what failed, once for each error until it does not fail any more.
func (w *work) warn(what string, err error) {
	told := w.sh.toldErr[what]
	switch {
	case err == nil:
		delete(w.sh.toldErr, what)
		return
	case told[err.Error()]:
		return
	case told == nil || len(told) >= maxErrs:
		told = map[string]bool{}
		w.sh.toldErr[what] = told
	}
	told[err.Error()] = true
	w.s.o.Log.Warn(what+"; it is logged once for each error", "provider", w.name, "class", string(fault.Of(err)), "error", err)
}

// tellHeld tells of a set that the fuse holds back, once. The log has all of
// it, since what a report shows of it may be cut short.
func (w *work) tellHeld() {
	r := &w.report
	if w.sh.toldHash[r.Hash] {
		return
	}
	if len(w.sh.toldHash) >= maxHashes {
		clear(w.sh.toldHash)
	}
	w.sh.toldHash[r.Hash] = true
	total := len(w.plan.held)
	for from := 0; from < total; from += maxLine {
		to := min(from+maxLine, total)
		w.s.o.Log.Warn("the fuse holds orphans back; lines of at most 100 name all of them", "provider", w.name, "hash", r.Hash,
			"from", from+1, "to", to, "of", total, "instances", strings.Join(w.plan.held[from:to], " "))
	}
	w.s.o.Event(w.name, true, EventSweepHeld, fmt.Sprintf(
		"orphans are held back: %s. When they may go: %s", r.Fuse, ReleaseCommand(w.name, r.Hash)))
}

// tellLeftovers tells of all leftovers that the sweep removed.
func (w *work) tellLeftovers() {
	var names []string
	n := 0
	for _, it := range w.report.Items {
		if it.What == Instance || it.Verdict != Removed {
			continue
		}
		if n++; n <= maxNamed {
			names = append(names, fmt.Sprintf("%s %s on %s", it.What, it.ID, it.Host))
		}
	}
	if n == 0 {
		return
	}
	more := ""
	if n > maxNamed {
		more = fmt.Sprintf(" and %d more", n-maxNamed)
	}
	w.s.o.Event(w.name, false, EventLeftoversRemoved, fmt.Sprintf("%d removed that nothing used: %s%s", n, strings.Join(names, ", "), more))
}

// result is the label of the sweep's run.
func (r Report) result() string {
	switch {
	case r.Err != nil:
		return "failed"
	case r.Count(true, Held)+r.Count(false, Held) > 0:
		return "held"
	case len(r.Items)+len(r.Unlisted) > 0:
		return "found"
	}
	return "clean"
}
