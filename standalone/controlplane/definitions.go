package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"fleetdesk/internal/core/fault"
)

const definitionsTimeout = 30 * time.Second

// crdResource is where CustomResourceDefinitions are served.
func crdResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

// readDefinitions reads every *.yaml of the file system, one
// CustomResourceDefinition each.
func readDefinitions(files fs.FS) ([]*unstructured.Unstructured, error) {
	if files == nil {
		return nil, nil
	}
	var all []*unstructured.Unstructured
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".yaml" {
			return err
		}
		b, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		b, err = utilyaml.ToJSON(b)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(b); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if u.GetKind() != "CustomResourceDefinition" || u.GetName() == "" {
			return fmt.Errorf("%s: is a %q, want one CustomResourceDefinition with a name", name, u.GetKind())
		}
		all = append(all, u)
		return nil
	})
	if err != nil {
		return nil, fault.Errorf(fault.Permanent, "definitions to install: %w", err)
	}
	return all, nil
}

// installDefinitions applies the definitions and waits until each is served.
// What a former version installed is brought up to date.
func installDefinitions(ctx context.Context, loopback *rest.Config, all []*unstructured.Unstructured) error {
	if len(all) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, definitionsTimeout)
	defer cancel()
	dc, err := dynamic.NewForConfig(loopback)
	if err != nil {
		return fault.Wrap(fault.Permanent, err)
	}
	crds := dc.Resource(crdResource())
	for _, u := range all {
		opts := metav1.ApplyOptions{FieldManager: "fleetdesk-standalone", Force: true}
		if _, err := crds.Apply(ctx, u.GetName(), u, opts); err != nil {
			return installError(u.GetName(), err)
		}
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for _, u := range all {
		for {
			now, err := crds.Get(ctx, u.GetName(), metav1.GetOptions{})
			if err == nil && condition(now, "Established")["status"] == "True" {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return notServed(u.GetName(), now, err)
			}
		}
	}
	return nil
}

// installError classes the API's answer: what it refuses now it refuses at
// every start.
func installError(name string, err error) error {
	class, remedy := fault.Unavailable, ""
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), apierrors.IsRequestEntityTooLargeError(err):
		class = fault.Permanent
		remedy = ": compare it with what is installed there, which another version or another program may have made"
	case apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), errors.Is(err, context.DeadlineExceeded):
		class = fault.Timeout
	}
	return fault.Errorf(class, "install the definition %s: %w%s", name, err, remedy)
}

// notServed says why a definition that was taken is not in use in time.
func notServed(name string, crd *unstructured.Unstructured, err error) error {
	if err == nil {
		// Names that another definition has wait for a person.
		if c := condition(crd, "NamesAccepted"); c["status"] == "False" {
			return fault.Errorf(fault.Permanent, "the definition %s is not served: its names are not accepted: %v: delete the definition that has them", name, c["message"])
		}
		err = context.DeadlineExceeded
	}
	return fault.Errorf(fault.Timeout, "the definition %s is not served within %s: %w", name, definitionsTimeout, err)
}

// condition returns a condition of the definition's status; nil when it has
// none of that type.
func condition(crd *unstructured.Unstructured, typ string) map[string]any {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == typ {
			return c
		}
	}
	return nil
}
