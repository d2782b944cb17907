package proxyprovider

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/api/v1alpha1"
)

// EventNotUnderstood: an annotation names something that is not there.
const EventNotUnderstood = "AnnotationNotUnderstood"

// asked is what is known of a provider's annotations since this process began.
type asked struct {
	uid             types.UID
	release, remove string // as last seen
	// hashes are those that reports had, and uids those that were written down:
	// what a person may have meant. told are the ones complained about.
	hashes, uids, told memory
}

// memory is a set that forgets everything before it grows without end.
type memory map[string]bool

const maxMemory = 4 * MaxAbandoned

func (m *memory) add(s string) {
	if len(*m) >= maxMemory || *m == nil {
		*m = memory{}
	}
	(*m)[s] = true
}

// judge tells the sweep of annotations that changed, and the person who set
// them of what names nothing: once each, and only when a sweep has ended since
// the start, for only then it is known what there is.
func (r *Reconciler) judge(o *v1alpha1.ProxyProvider, in known) {
	release := strings.TrimSpace(o.Annotations[v1alpha1.ReleaseSweepAnnotation])
	remove := o.Annotations[v1alpha1.RemoveAbandonedAnnotation]
	var wrong []string
	r.mu.Lock()
	a := r.asked[o.Name]
	if a == nil || a.uid != o.UID {
		a = &asked{uid: o.UID}
		r.asked[o.Name] = a
	}
	changed := a.release != release || a.remove != remove
	a.release, a.remove = release, remove
	if o.Status.Sweep != nil { // as an earlier leader wrote it
		a.hashes.add(o.Status.Sweep.Hash)
	}
	a.hashes.add(in.sweep.Hash)
	for _, w := range o.Status.Abandoned {
		a.uids.add(w.UID)
	}
	if release != "" && in.swept && !a.hashes[release] && !a.told["release "+release] {
		a.told.add("release " + release)
		wrong = append(wrong, wrongRelease(release, in.sweep.Hash))
	}
	var unknown, waiting []string
	for _, uid := range namedUIDs(o) {
		switch told := "remove " + uid; {
		case a.told[told]:
		case !a.uids[uid]:
			a.told.add(told)
			unknown = append(unknown, uid)
		case !sweeps(in) && !a.told["idle "+uid]:
			a.told.add("idle " + uid)
			waiting = append(waiting, uid)
		}
	}
	r.mu.Unlock()

	if len(unknown) > 0 {
		wrong = append(wrong, fmt.Sprintf("annotation %s names %s, and no abandoned instance of this provider has such a UID: "+
			"nothing is done about it; status.abandoned has those that there are", v1alpha1.RemoveAbandonedAnnotation, named(unknown)))
	}
	if len(waiting) > 0 {
		wrong = append(wrong, fmt.Sprintf("annotation %s names %s, and %s", v1alpha1.RemoveAbandonedAnnotation, named(waiting), noSweep(o, in, waiting[0])))
	}
	for _, message := range wrong {
		r.record(o.Name, o.UID, true, EventNotUnderstood, message)
	}
	if changed && in.state != nil {
		r.o.Asked(o.Name)
	}
}

// sweeps tells whether a sweep does what a person asks for, as far as is known.
func sweeps(in known) bool { return in.state != nil && !(in.swept && in.sweep.DryRun) }

// noSweep says why none does, and what to do about an instance.
func noSweep(o *v1alpha1.ProxyProvider, in known, uid string) string {
	if in.state != nil {
		return "sweeps only report what they would do: start the operator without --gc-dry-run to have it done"
	}
	row := slices.IndexFunc(o.Status.Abandoned, func(a v1alpha1.AbandonedInstance) bool { return a.UID == uid })
	return notSwept + ": " + putBackOrStrike(o.Name, max(row, 0), uid)
}

func wrongRelease(release, hash string) string {
	if hash == "" {
		return fmt.Sprintf("annotation %s names %s, and nothing is held back: remove it once no orphan of that set is left", v1alpha1.ReleaseSweepAnnotation, clip(release, maxField))
	}
	return fmt.Sprintf("annotation %s names %s, and what is held back is %s: nothing is released; status.sweep.items has what it is", v1alpha1.ReleaseSweepAnnotation, clip(release, maxField), hash)
}

// named lists the first ten.
func named(all []string) string {
	const most = 10
	first := make([]string, 0, most)
	for _, s := range all[:min(len(all), most)] {
		first = append(first, clip(s, 64))
	}
	text := strings.Join(first, ", ")
	if more := len(all) - len(first); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
