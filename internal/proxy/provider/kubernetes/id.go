package kubernetes

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

const (
	// scheme begins every providerID of this provider.
	scheme = "kubernetes://"
	// namePrefix begins the name of everything that is made for a Proxy.
	namePrefix = "px-"
	// tagLen is the length of a tag: eight bytes in hex.
	tagLen = 16

	// prefix begins our own labels and annotations.
	prefix = "crawl.example.com/"
	// labelManaged with managedBy is on everything that we make.
	labelManaged = "app.kubernetes.io/managed-by"
	managedBy    = "fleetdesk"
	// labelInstallation has the installation's tag, labelUID the Proxy's UID.
	labelInstallation = prefix + "installation"
	labelUID          = prefix + "proxy-uid"
	// annotationOwner has the whole owner as JSON: an installation and a Proxy's
	// name may be longer than a label.
	annotationOwner = prefix + "owner"
	// annotationWritten, on a Secret, is another one each time: an update that
	// changes nothing keeps the version, by which a sweep tells what is left over.
	annotationWritten = prefix + "written"
	// annotationService, on a Pod, has the kind of Service that it was made with.
	annotationService = prefix + "service"
)

var (
	labelForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	uidForm   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,34}[a-z0-9])?$`)
	podForm   = regexp.MustCompile(`^px-([a-z0-9](?:[-a-z0-9]{0,34}[a-z0-9])?)-([0-9a-f]{16})$`)
)

// ID is a providerID in parts: kubernetes://<provider>/<cluster>/<namespace>/<pod>.
type ID struct {
	// Provider, Cluster and Namespace are as in the configuration.
	Provider, Cluster, Namespace string
	// Pod is the Pod's name: px-<uid>-<tag>.
	Pod string
}

// String returns the providerID.
func (id ID) String() string {
	return scheme + id.Provider + "/" + id.Cluster + "/" + id.Namespace + "/" + id.Pod
}

// Host is where it is.
func (id ID) Host() string { return id.Cluster + "/" + id.Namespace }

// ParseID reads a providerID. Everything but exactly what [ID.String] writes is
// Invalid.
func ParseID(s string) (ID, error) {
	rest, ok := strings.CutPrefix(s, scheme)
	if !ok {
		return ID{}, fault.Errorf(fault.Invalid, "providerID %q does not begin with %s", short(s), scheme)
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 4 || !labelForm.MatchString(parts[0]) || !labelForm.MatchString(parts[1]) ||
		!labelForm.MatchString(parts[2]) || !podForm.MatchString(parts[3]) {
		return ID{}, fault.Errorf(fault.Invalid, "providerID %q is not of the form %s<provider>/<cluster>/<namespace>/px-<uid>-<tag>", short(s), scheme)
	}
	return ID{Provider: parts[0], Cluster: parts[1], Namespace: parts[2], Pod: parts[3]}, nil
}

// TagOf returns the tag of an installation: a restored cluster has the UIDs of
// the first one, and the instances of the two must not share a name.
func TagOf(installation string) string {
	sum := sha256.Sum256([]byte(installation))
	return hex.EncodeToString(sum[:tagLen/2])
}

// nameOf is the name of all that is made for an owner, or Invalid when the
// owner names none. It is a label of at most 56 characters.
func nameOf(o provider.Owner) (string, error) {
	if !uidForm.MatchString(o.UID) {
		return "", fault.Errorf(fault.Invalid, "owner UID %q: want 1 to 36 lower-case letters, digits and dashes", short(o.UID))
	}
	if o.Installation == "" {
		return "", fault.New(fault.Invalid, "owner installation is empty: an instance must carry whose it is")
	}
	return namePrefix + o.UID + "-" + TagOf(o.Installation), nil
}

// owner is provider.Owner as written in the annotation.
type owner struct {
	Installation string `json:"installation"`
	Namespace    string `json:"namespace"`
	Name         string `json:"name"`
	UID          string `json:"uid"`
}

// mark puts the owner on an object.
func mark(m *metav1.ObjectMeta, o provider.Owner) error {
	text, err := json.Marshal(owner(o))
	if err != nil {
		return fault.Errorf(fault.Invalid, "the owner cannot be written: %w", err)
	}
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Labels[labelManaged], m.Labels[labelInstallation], m.Labels[labelUID] = managedBy, TagOf(o.Installation), o.UID
	m.Annotations[annotationOwner] = string(text)
	return nil
}

// ownership is what an object says of whose it is.
type ownership int

const (
	// strange: it does not carry our marks, or another owner's.
	strange ownership = iota
	// torn: its labels and name are the owner's, and its annotation is damaged.
	torn
	// whole: labels, name and annotation agree.
	whole
)

// ownerOf reads whose an object is. Of a torn one only the UID is known.
func ownerOf(m metav1.Object) (provider.Owner, ownership) {
	parts := podForm.FindStringSubmatch(m.GetName())
	labels := m.GetLabels()
	if parts == nil || labels[labelManaged] != managedBy || labels[labelUID] != parts[1] || labels[labelInstallation] != parts[2] {
		return provider.Owner{}, strange
	}
	var o owner
	err := json.Unmarshal([]byte(m.GetAnnotations()[annotationOwner]), &o)
	if err != nil || o.UID != parts[1] || TagOf(o.Installation) != parts[2] {
		return provider.Owner{UID: parts[1]}, torn
	}
	return provider.Owner(o), whole
}
