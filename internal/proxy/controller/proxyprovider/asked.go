package proxyprovider

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
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
	var unknown []string
	for _, uid := range namedUIDs(o) {
		if !a.uids[uid] && !a.told["remove "+uid] {
			a.told.add("remove " + uid)
			unknown = append(unknown, uid)
		}
	}
	r.mu.Unlock()

	if len(unknown) > 0 {
		wrong = append(wrong, fmt.Sprintf("annotation %s names %s, and no abandoned instance of this provider has such a UID: "+
			"nothing is done about it; status.abandoned has those that there are", v1alpha1.RemoveAbandonedAnnotation, named(unknown)))
	}
	for _, message := range wrong {
		r.record(o.Name, o.UID, true, EventNotUnderstood, message)
	}
	if changed && in.state != nil {
		r.o.Asked(o.Name)
	}
}

func wrongRelease(release, hash string) string {
	if hash == "" {
		return fmt.Sprintf("annotation %s names %s, and nothing is held back: it does nothing, remove it", v1alpha1.ReleaseSweepAnnotation, clip(release, maxField))
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

// forget drops what is known of a provider whose object is gone.
func (r *Reconciler) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.asked, name)
}

// eventTimeout bounds a look into the cache's memory.
const eventTimeout = time.Second

// Event records an Event on the provider's object.
func (r *Reconciler) Event(name string, warning bool, reason, message string) {
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	defer cancel()
	o := &v1alpha1.ProxyProvider{}
	if err := r.o.Client.Get(ctx, types.NamespacedName{Name: name}, o); err != nil {
		o.UID = "" // it is told all the same: the object comes soon
	}
	r.record(name, o.UID, warning, reason, message)
}

// record makes the Event. Kubernetes takes Events of the same object, reason
// and action for one that repeats, and keeps the first one's text; so the
// action is the text's own, and the object is named without its version.
func (r *Reconciler) record(name string, uid types.UID, warning bool, reason, message string) {
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	message = clip(message, maxText)
	h := fnv.New32a()
	_, _ = h.Write([]byte(message))
	r.o.Events.Eventf(&corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "ProxyProvider", Name: name, UID: uid,
	}, nil, kind, reason, fmt.Sprintf("%s-%08x", reason, h.Sum32()), "%s", message)
}

// maxText bounds the text of a condition or an Event, in bytes: the API refuses
// an Event with more.
const maxText = 1024

// clip makes one line of at most that many bytes of valid UTF-8 of a text: it
// may quote what a far side sent.
func clip(s string, most int) string {
	s = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s, "�"))
	if len(s) <= most {
		return s
	}
	const more = " …"
	s = s[:most-len(more)]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + more
}
