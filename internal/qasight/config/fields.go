package config

import (
	"regexp"
	"time"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/pool"
)

// Limits of single fields.
const (
	// maxPrefix bounds name_prefix, in bytes.
	maxPrefix = 64
	// maxCommand bounds a command, in bytes: the system takes no argument of
	// 128 KiB, and what is near that belongs in a script.
	maxCommand = 64 << 10
	// maxDepth bounds what is nested in what. The format needs six.
	maxDepth = 32
	// maxFields bounds the colons of a file, as the parser's time grows with their
	// square. The largest file, with all fields of all pools and stages, has 4,000.
	maxFields = 10_000

	minTimeout = time.Second
	maxTimeout = 24 * time.Hour
)

// kind is what a field's value is.
type kind int

const (
	name     kind = iota // a name of the grammar of keys
	prefix               // what such a name begins with
	address              // a server's URL
	command              // a text for /bin/sh -c
	duration             // a time from low to high
	count                // a whole number from low to high
	names                // a list of at most high names, each once
	verbs                // a list of verbs, each once
	single               // a mapping: the fields of section
	many                 // a mapping of names to such mappings, low to high of them
)

// field is a field of the file. The table of them is what the reader, the
// schema and the hints in errors are made of.
type field struct {
	name     string
	kind     kind
	required bool
	// doc says what it is, for editors.
	doc string
	// low and high bound the value: nanoseconds of a duration, else a count.
	low, high int64
	// whole is set for a duration that must be whole seconds.
	whole bool
	// preset is what a field that is left out stands for, in the file's own
	// notation; "" for nothing.
	preset  string
	section *section
}

// section is a mapping with fields of its own.
type section struct {
	// what names it in errors: "the file", "a pool".
	what   string
	fields []field
}

func (s *section) field(name string) (field, bool) {
	for _, f := range s.fields {
		if f.name == name {
			return f, true
		}
	}
	return field{}, false
}

func (s *section) names() []string {
	out := make([]string, len(s.fields))
	for i, f := range s.fields {
		out[i] = f.name
	}
	return out
}

// durationForm is what times look like, in the file and in the schema.
const durationForm = `^([0-9]+(\.[0-9]+)?(h|m|s|ms))+$`

var (
	durations = regexp.MustCompile(durationForm)
	numbers   = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)
	days      = regexp.MustCompile(`^([0-9]{1,3})d$`)
	integers  = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
)

// format is the file's table of fields.
func format() *section {
	return &section{what: "the file", fields: []field{
		{
			name: "project", kind: name, required: true,
			doc: "Names the local lease database, so that all checkouts of a project on one machine share it.",
		},
		{
			name: "server", kind: address,
			doc: "The team server's URL. Without it, the local lease database is used. Plain http is for this machine only.",
		},
		{
			name: "pools", kind: many, required: true, low: 1, high: MaxPools, section: poolFields(),
			doc: "The pools by their names.",
		},
		{
			name: "stages", kind: many, high: MaxPools, section: stageFields(),
			doc: "Commands that several workers run, each with a key of its own, by their names.",
		},
	}}
}

func poolFields() *section {
	return &section{what: "a pool", fields: []field{
		{
			name: "items", kind: names, required: true, high: lease.MaxItems,
			doc: "The keys of the pool, each once. Only a person adds or removes one, here.",
		},
		{
			name: "lease_ttl", kind: duration, low: int64(lease.MinTTL), high: int64(lease.MaxTTL), whole: true, preset: pool.Short(lease.DefaultTTL),
			doc: "How long a lease lasts unless it is renewed.",
		},
		{
			name: "cooldown", kind: duration, high: int64(lease.MaxCooldown), whole: true, preset: "0s",
			doc: "How long a key rests after each use.",
		},
		{
			name: "on_check", kind: command,
			doc: "Is this key usable? Run on take, and by pool status --check; exit code 0 means yes.",
		},
		{
			name: "on_reset", kind: command,
			doc: "Makes a key fit for the next user. Run on release and after a lease that ran out.",
		},
		{
			name: "hook_timeout", kind: duration, low: int64(minTimeout), high: int64(maxTimeout), preset: pool.Short(DefaultHookTimeout),
			doc: "When a run of on_check or on_reset is ended.",
		},
		{
			name: "provider", kind: single, section: providerFields(),
			doc: "Your own commands around the machines behind the keys. It never leaves this machine, and only what a person types runs it.",
		},
	}}
}

func providerFields() *section {
	return &section{what: "a provider", fields: []field{
		{
			name: "list", kind: command, required: true,
			doc: "Prints the keys that exist, one per line.",
		},
		{
			name: "create", kind: command,
			doc: "Makes the machine named by $QASIGHT_KEY.",
		},
		{
			name: "destroy", kind: command,
			doc: "Deletes the machine named by $QASIGHT_KEY.",
		},
		{
			name: "allow", kind: verbs, high: int64(len(everyVerb())),
			doc: "What a person may have done by qasight pool add, remove and sweep. Each needs its command and name_prefix, create also max_items.",
		},
		{
			name: "name_prefix", kind: prefix,
			doc: "What the names of this pool's machines begin with; no other machine is ever touched.",
		},
		{
			name: "max_items", kind: count, low: 1, high: lease.MaxItems,
			doc: "How many machines there may be at most.",
		},
		{
			name: "timeout", kind: duration, low: int64(minTimeout), high: int64(maxTimeout), preset: pool.Short(DefaultProviderTimeout),
			doc: "When a run of one of these commands is ended.",
		},
	}}
}

func stageFields() *section {
	return &section{what: "a stage", fields: []field{
		{
			name: "command", kind: command, required: true,
			doc: "What each worker runs, with its key in $QASIGHT_KEY.",
		},
		{
			name: "pool", kind: name, required: true,
			doc: "The pool that the workers take their keys from.",
		},
		{
			name: "workers", kind: count, low: 1, high: MaxWorkers, preset: "1",
			doc: "How many workers there are. Those that find no free key wait for one.",
		},
	}}
}

func everyVerb() []string { return []string{string(Create), string(Destroy)} }

// needs are the fields without which a verb is not allowed, beyond those that
// every provider has: its command, and what bounds it.
func needs(v Verb) []string {
	out := []string{string(v), "name_prefix"}
	if v == Create {
		out = append(out, "max_items")
	}
	return out
}
