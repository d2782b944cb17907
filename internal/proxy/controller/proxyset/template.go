package proxyset

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
)

const (
	// nameLetters are those of a Proxy's own part of its name: no vowels, so that
	// no words come about, and none that look alike.
	nameLetters = "bcdfghjklmnpqrstvwxz2456789"
	nameLength  = 10
	// metadataKey is the annotation with the hash of the template's labels and
	// annotations that a Proxy was made with: it may have others since.
	metadataKey = "crawl.example.com/template-metadata"
)

// newName is a name for a Proxy of a set.
func newName(set string) string {
	name := []byte(set + "-")
	for range nameLength {
		name = append(name, nameLetters[rand.IntN(len(nameLetters))])
	}
	return string(name)
}

// templateHash tells templates apart.
func templateHash(t *v1alpha1.ProxyTemplate) string {
	return hashOf(t)
}

func hashOf(of any) string {
	b, err := json.Marshal(of)
	if err != nil {
		// A template has no part that cannot be encoded.
		panic(fmt.Sprintf("encoding a template: %v", err))
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:5])
}

// newProxy is a Proxy of the set as its template has it.
func newProxy(set *v1alpha1.ProxySet, name, hash string) *v1alpha1.Proxy {
	t := set.Spec.Template.DeepCopy()
	px := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: name,
			Labels: labelsOf(&set.Spec.Template), Annotations: t.Metadata.Annotations,
			OwnerReferences: []metav1.OwnerReference{ownerReference(set)},
		},
		Spec: t.Spec,
	}
	px.Labels[v1alpha1.SetLabel], px.Labels[v1alpha1.TemplateLabel] = set.Name, hash
	if px.Annotations == nil {
		px.Annotations = map[string]string{}
	}
	px.Annotations[metadataKey] = hashOf(&set.Spec.Template.Metadata)
	return px
}

// ownerReference marks a Proxy as the set's own. It does not block the set's
// deletion, since our finalizer does.
func ownerReference(set *v1alpha1.ProxySet) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Name: set.Name, UID: set.UID,
		Controller: new(true), BlockOwnerDeletion: new(false),
	}
}

func labelsOf(t *v1alpha1.ProxyTemplate) map[string]string {
	out := map[string]string{}
	for k, v := range t.Metadata.Labels {
		out[k] = string(v)
	}
	return out
}

// outdated says whether a Proxy was made from another template than this one.
// The hash says so, unless a newer operator has defaults that an earlier one had
// not: the same template has another hash then, and a fleet must not be made
// anew for that. So a Proxy that was made with the template's labels and
// annotations and has its spec is up to date, whatever people added to it.
func outdated(px *v1alpha1.Proxy, t *v1alpha1.ProxyTemplate, hash string) bool {
	if px.Labels[v1alpha1.TemplateLabel] == hash {
		return false
	}
	return px.Annotations[metadataKey] != hashOf(&t.Metadata) || !equality.Semantic.DeepEqual(&px.Spec, &t.Spec)
}
