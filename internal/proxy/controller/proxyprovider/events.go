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

// event is one that waits for its object.
type event struct {
	warning         bool
	reason, message string
}

const (
	// eventTimeout bounds a look into the cache's memory.
	eventTimeout = time.Second
	// maxUntold is how many Events of one provider wait for its object.
	maxUntold = 32
)

// forget drops what is known of a provider whose object is gone or not ours.
func (r *Reconciler) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.asked, name)
	delete(r.others, name)
	delete(r.untold, name)
}

// Event records an Event on the provider's object. Who looks at an object is
// shown the Events with its UID alone; so one of a provider whose object is not
// there yet, as at the first start, waits until it is.
func (r *Reconciler) Event(name string, warning bool, reason, message string) {
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	defer cancel()
	o := &v1alpha1.ProxyProvider{}
	if err := r.o.Client.Get(ctx, types.NamespacedName{Name: name}, o); err == nil && o.UID != "" {
		r.record(name, o.UID, warning, reason, message)
		return
	}
	r.mu.Lock()
	if all := r.untold[name]; len(all) < maxUntold {
		r.untold[name] = append(all, event{warning, reason, message})
	}
	r.mu.Unlock()
	r.Changed(name) // it may have come since
}

// tellLate records the Events that waited for the object.
func (r *Reconciler) tellLate(o *v1alpha1.ProxyProvider) {
	r.mu.Lock()
	late := r.untold[o.Name]
	delete(r.untold, o.Name)
	r.mu.Unlock()
	for _, e := range late {
		r.record(o.Name, o.UID, e.warning, e.reason, e.message)
	}
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
