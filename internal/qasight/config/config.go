// Package config reads qasight.yaml, strictly and with the position of whatever is
// wrong. It is the only source of truth about a project's pools: no program ever
// writes it.
package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/pool"
)

// FileName is the file's usual name.
const FileName = "qasight.yaml"

// Limits of a file.
const (
	MaxSize  = 4 << 20
	MaxPools = 200
	// MaxItems of one pool are lease.MaxItems.
	MaxWorkers = 256
)

// Defaults of fields that are left out.
const (
	DefaultHookTimeout     = 2 * time.Minute
	DefaultProviderTimeout = 10 * time.Minute
)

// File is a whole file that is well-formed.
type File struct {
	// Path is what the file was opened as, Dir its folder (absolute): commands run
	// there.
	Path, Dir string
	// Project names the local lease database; it has the grammar of keys.
	Project string
	// Server is the team server's URL; "" for the local lease database.
	Server string
	// Pools and Stages are in the file's order; names are unique.
	Pools  []Pool
	Stages []Stage
}

// Pool is one pool with all that only its owner knows.
type Pool struct {
	pool.Pool
	Hooks Hooks
	// Provider is nil where the pool has none.
	Provider *Provider
	// At is where its name stands.
	At Position

	// items is where each key stands.
	items map[string]Position
}

// Hooks are the owner's commands, run by /bin/sh -c in File.Dir; "" for none.
type Hooks struct {
	Check, Reset string
	// Timeout bounds each run.
	Timeout time.Duration
}

// Verb is what a person may do to a pool's machines.
type Verb string

// The verbs.
const (
	Create  Verb = "create"
	Destroy Verb = "destroy"
)

// Provider is the owner's own commands around machines, run by /bin/sh -c in
// File.Dir. Only what a person types runs them (package humanrun).
type Provider struct {
	// List is never "" . Create and Destroy are "" where there are none.
	List, Create, Destroy string
	// Allow are the verbs that a person may have run. With one of them Prefix is
	// not "", and with create MaxItems is at least 1.
	Allow    []Verb
	Prefix   string
	MaxItems int
	// Timeout bounds each run.
	Timeout time.Duration
}

// Stage is a command that several workers run, each with a key of its own.
type Stage struct {
	Name, Command, Pool string
	// Workers is at least 1.
	Workers int
	At      Position
}

// Position is a place in the file; lines and columns (characters, not bytes) count
// from 1. The zero value is none.
type Position struct{ Line, Column int }

// Pool returns a pool by its name. An unknown one is Invalid with the code
// "unknown_pool"; the text names those that exist and one that reads alike.
func (f *File) Pool(name string) (*Pool, error) {
	for i := range f.Pools {
		if f.Pools[i].Name == name {
			return &f.Pools[i], nil
		}
	}
	return nil, unknown(f.Path, "pool", name, f.poolNames())
}

// Stage returns a stage by its name; see [File.Pool]. The code is "unknown_stage".
func (f *File) Stage(name string) (*Stage, error) {
	all := make([]string, len(f.Stages))
	for i := range f.Stages {
		if f.Stages[i].Name == name {
			return &f.Stages[i], nil
		}
		all[i] = f.Stages[i].Name
	}
	return nil, unknown(f.Path, "stage", name, all)
}

func unknown(file, what, name string, all []string) error {
	return fault.WithCode(fault.Errorf(fault.Invalid, "%s has no %s %s: %s", file, what, quoted(name), alike(name, all)), "unknown_"+what)
}

func (f *File) poolNames() []string {
	out := make([]string, len(f.Pools))
	for i := range f.Pools {
		out[i] = f.Pools[i].Name
	}
	return out
}

// Lists returns the names of the pools that have the key among their items, in
// the file's order; nil when none has.
func (f *File) Lists(key string) []string {
	var out []string
	for i := range f.Pools {
		if f.Pools[i].lists(key) {
			out = append(out, f.Pools[i].Name)
		}
	}
	return out
}

func (p *Pool) lists(key string) bool {
	if len(p.items) == len(p.Items) {
		_, there := p.items[key]
		return there
	}
	// The pool was not read from a file.
	return slices.Contains(p.Items, key)
}

// ItemAt returns where a key stands among the pool's items; the zero Position
// when it is none of them.
func (p *Pool) ItemAt(key string) Position { return p.items[key] }

// OverlappingPrefix returns another pool with a provider whose prefix begins with
// p's, or the other way round: a machine could then be taken for one of both. Pools
// whose provider has no prefix overlap with none.
func (f *File) OverlappingPrefix(p *Pool) (other *Pool, ok bool) {
	if p.Provider == nil || p.Provider.Prefix == "" {
		return nil, false
	}
	mine := p.Provider.Prefix
	for i := range f.Pools {
		o := &f.Pools[i]
		if o.Name == p.Name || o.Provider == nil || o.Provider.Prefix == "" {
			continue
		}
		if strings.HasPrefix(mine, o.Provider.Prefix) || strings.HasPrefix(o.Provider.Prefix, mine) {
			return o, true
		}
	}
	return nil, false
}

// Allows reports whether a person may have the verb run.
func (p *Provider) Allows(v Verb) bool { return slices.Contains(p.Allow, v) }

// String is "line:column".
func (p Position) String() string { return fmt.Sprintf("%d:%d", p.Line, p.Column) }

func (p Position) after(o Position) bool {
	return p.Line > o.Line || p.Line == o.Line && p.Column > o.Column
}
