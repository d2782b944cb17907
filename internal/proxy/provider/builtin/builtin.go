// Package builtin is the one place that knows every provider we ship: it
// builds one from its entry of the providers file.
package builtin

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/config"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/proxy/provider/kubernetes"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/local"
)

// Deps are what providers get from the operator.
type Deps struct {
	// StateDir is where providers that keep files keep them, each in a folder
	// of its own name.
	StateDir string
	// LocalCommand starts a local proxy: our own binary and its hidden
	// subcommand.
	LocalCommand []string
	// Secret reads a key of a Secret in the operator's own namespace, as it is
	// now. A Secret or key that is not there is NotFound. Providers call it when
	// they need it, so a rotated Secret needs no restart. Nil where there is none.
	Secret func(ctx context.Context, ref provider.SecretRef) (provider.Secret, error)
	Log    *slog.Logger
}

// Kinds returns the kinds of provider that Build knows, sorted.
func Kinds() []string { return []string{"gcp", "kubernetes", "kvm", "local"} }

// localSection is the section `local` of the providers file.
type localSection struct {
	// StateDir is where the instances' files lie; by default a folder of the
	// operator's own state.
	StateDir string `yaml:"stateDir"`
}

// Build makes the provider of an entry. It asks nobody but the local disk.
// Errors name the file, line and field.
func Build(e config.Entry, d Deps) (provider.Provider, error) {
	if e.Err != nil {
		return nil, e.Err
	}
	switch e.Kind {
	case "gcp":
		var s gcp.Section
		if err := e.Decode(&s); err != nil {
			return nil, err
		}
		p, err := gcp.New(gcp.Options{Name: e.Name, Section: s, Secret: d.Secret, Log: d.Log})
		if field, ok := errors.AsType[*gcp.FieldError](err); ok {
			return nil, fault.Errorf(fault.Invalid, "%s:%d: %w", e.File(), e.LineOf(field.Path...), err)
		}
		if err != nil {
			return nil, err
		}
		return p, nil
	case "kubernetes":
		var s kubernetes.Section
		if err := e.Decode(&s); err != nil {
			return nil, err
		}
		p, err := kubernetes.New(kubernetes.Options{Name: e.Name, Section: s, Secret: d.Secret, Log: d.Log})
		if field, ok := errors.AsType[*kubernetes.FieldError](err); ok {
			return nil, fault.Errorf(fault.Invalid, "%s:%d: %w", e.File(), e.LineOf(field.Path...), err)
		}
		if err != nil {
			return nil, err
		}
		return p, nil
	case "kvm":
		var s kvm.Section
		if err := e.Decode(&s); err != nil {
			return nil, err
		}
		p, err := kvm.New(kvm.Options{Name: e.Name, Section: s, Log: d.Log})
		if field, ok := errors.AsType[*kvm.FieldError](err); ok {
			return nil, fault.Errorf(fault.Invalid, "%s:%d: %w", e.File(), e.LineOf(field.Path...), err)
		}
		if err != nil {
			return nil, err
		}
		return p, nil
	case "local":
		s := localSection{StateDir: filepath.Join(d.StateDir, "providers", e.Name)}
		if err := e.Decode(&s); err != nil {
			return nil, err
		}
		if !filepath.IsAbs(s.StateDir) {
			return nil, fault.Errorf(fault.Invalid, "provider %q: stateDir %q must be an absolute path", e.Name, s.StateDir)
		}
		return local.New(local.Options{Name: e.Name, StateDir: s.StateDir, Command: d.LocalCommand, Log: d.Log})
	}
	return nil, fault.Errorf(fault.Invalid, "%s:%d: provider %q: unknown kind %q: known are %v", e.File(), e.Line, e.Name, e.Kind, Kinds())
}
