package proxyprovider

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
)

// InstallationLabel says which operator keeps an object: several of one cluster
// may have a provider of the same name, and one alone may write its object.
const InstallationLabel = "crawl.example.com/installation"

// EventOtherInstallation: the object of a provider is kept by another operator.
const EventOtherInstallation = "OtherInstallation"

// markOf is the label's value for an installation.
func markOf(installation string) string {
	if installation == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(installation))
	return hex.EncodeToString(sum[:5])
}

// marked tells whether the object says that it is ours.
func (r *Reconciler) marked(o *v1alpha1.ProxyProvider) bool {
	return r.mark == "" || o.Labels[InstallationLabel] == r.mark
}

// foreign tells whether the object says that another operator keeps it. One
// that says nothing is ours to take.
func (r *Reconciler) foreign(o *v1alpha1.ProxyProvider) bool {
	return o.Labels[InstallationLabel] != "" && !r.marked(o)
}

// putMark marks an object as ours, here and not in the API.
func (r *Reconciler) putMark(o *v1alpha1.ProxyProvider) {
	if r.mark == "" {
		return
	}
	if o.Labels == nil {
		o.Labels = map[string]string{}
	}
	o.Labels[InstallationLabel] = r.mark
}

// otherKeeps says whose the object is, and the ways out.
func (r *Reconciler) otherKeeps(o *v1alpha1.ProxyProvider) string {
	return fmt.Sprintf("ProxyProvider %s is kept by the operator of another installation (label %s=%s, and ours is %s) and is left alone: give the provider"+
		" another name in one of the two providers files; or, when that operator is gone for good: kubectl label proxyprovider %s %s-",
		o.Name, InstallationLabel, clip(o.Labels[InstallationLabel], 64), r.mark, o.Name, InstallationLabel)
}

// refuseForeign is the error of a write to another operator's object.
func (r *Reconciler) refuseForeign(o *v1alpha1.ProxyProvider) error {
	return fault.New(fault.Conflict, r.otherKeeps(o))
}

// tellForeign says once that a provider of ours has another operator's object.
func (r *Reconciler) tellForeign(o *v1alpha1.ProxyProvider) {
	r.mu.Lock()
	told := r.others[o.Name] == o.Labels[InstallationLabel]
	r.others[o.Name] = o.Labels[InstallationLabel]
	r.mu.Unlock()
	if told {
		return
	}
	r.o.Log.Warn("the object of a provider is kept by another operator and is left alone", "provider", o.Name, "installation", o.Labels[InstallationLabel], "ours", r.mark)
	r.record(o.Name, o.UID, true, EventOtherInstallation, r.otherKeeps(o))
}
