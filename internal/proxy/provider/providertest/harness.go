package providertest

import (
	"io"
	"reflect"
	"time"

	"fleetdesk/internal/proxy/provider"
)

// T is the part of *testing.T that the suite and its harnesses use; it lets
// the suite's own test run a subtest that is meant to fail.
type T interface {
	Helper()
	Name() string
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Failed() bool
	Cleanup(func())
}

// Harness is what a back end offers to the suite. Provider, Installation,
// Spec and Hosts are required. Any other field that the back end really
// cannot offer stays nil, and every clause that goes unproven for it is
// declared in Absent; an undeclared one fails the suite.
//
// The back end may be shared: the suite makes owners of its own, removes what
// it made, and asserts on nothing else. Of claims it leaves one on each host for
// Installation and one for "another-" with Installation, as any operator does.
type Harness struct {
	// Provider is the one under test.
	Provider provider.Provider
	// Installation is the tag of the suite's instances.
	Installation string
	// Spec returns a valid spec for the owner, with Host empty. Where the
	// provider takes user-data or credentials the spec has some of each, at
	// least 8 bytes long (without either, P-GEN-5 belongs in Absent) and unlike anything else: the suite looks for them in
	// messages and errors.
	Spec func(owner provider.Owner) provider.Spec
	// Hosts are all hosts of the provider, by the names that ListByTag gives.
	Hosts []string

	// Patience bounds the time from the first call to Running, and to Gone;
	// zero means 30 s.
	Patience time.Duration
	// StepLimit is the longest that a call without a deadline of its own takes
	// in this set-up, where the harness shortened the provider's timeouts; zero
	// means provider.StepLimit.
	StepLimit time.Duration
	// Slack is how late after a deadline a call may return; zero means 2 s.
	Slack time.Duration
	// Many is the number of concurrent callers and instances where clauses
	// speak of many; zero means 8.
	Many int

	// Reopen returns a new provider over the same back end, as after a crash
	// of the operator. Instances go on.
	Reopen func(t T) provider.Provider
	// Remains names everything in the back end that belongs to that owner:
	// files, processes, volumes, machines. It looks at the back end itself,
	// not through the provider. The number of names must be the same for each
	// instance that runs.
	Remains func(t T, owner provider.Owner) []string
	// Foreign makes a thing that carries that owner, whose installation is
	// another, on the named host and with names derived as the provider
	// derives them. It returns a ref with the thing's ID, and a function that
	// fails its t unless the thing is as it was. The harness removes it in the
	// end (t.Cleanup).
	Foreign func(t T, host string, owner provider.Owner) (ref provider.Ref, untouched func(t T))

	// Stop stops a running instance behind the provider's back.
	Stop func(t T, in provider.Instance)
	// Vanish removes the instance with all its parts behind the provider's
	// back.
	Vanish func(t T, in provider.Instance)
	// Corrupt makes the instance unreadable though it is still there; mend
	// undoes it where the instance still exists.
	Corrupt func(t T, in provider.Instance) (mend func())
	// Impair breaks it in a way that starting does not mend.
	Impair func(t T, in provider.Instance) (mend func())
	// BreakHost makes every call that needs the host fail at once, until mend.
	BreakHost func(t T, host string) (mend func())
	// MuteHost makes every call that needs the host hang until its context
	// ends, until mend.
	MuteHost func(t T, host string) (mend func())
	// Fill leaves no room for another instance on any host, until mend.
	Fill func(t T) (mend func())

	// Litter leaves a thing on the host that no instance uses and Leftovers shall
	// show for the owner's installation: one that would belong to the owner's
	// UID, for which nothing else was made, and that goes by naming the UID in
	// keep. there looks at the back end itself. The harness removes it in the
	// end (t.Cleanup) where it is still there.
	Litter func(t T, host string, owner provider.Owner) (l provider.Leftover, there func(t T) bool)
	// Use makes something use a thing of Litter, until mend.
	Use func(t T, l provider.Leftover) (mend func())

	// UnknownIDs are well-formed ids on configured hosts that name nothing.
	UnknownIDs []string
	// MalformedIDs are strings that are no ids of this provider.
	MalformedIDs []string
	// StrayIDs are well-formed ids that name a host which is not configured.
	StrayIDs []string

	// Absent maps a clause that this back end cannot prove to the reason.
	Absent map[string]string
}

// minSecret is the least length of a secret that is looked for in texts; a
// shorter one could occur by chance.
const minSecret = 8

func (h Harness) withDefaults() Harness {
	if h.Patience == 0 {
		h.Patience = 30 * time.Second
	}
	if h.StepLimit == 0 {
		h.StepLimit = provider.StepLimit
	}
	if h.Slack == 0 {
		h.Slack = 2 * time.Second
	}
	if h.Many == 0 {
		h.Many = 8
	}
	return h
}

// offers reports whether the field of that name is filled in. The names of
// optional interfaces ask the provider itself, "Secrets" whether specs have any.
func (h Harness) offers(field string) bool {
	switch field {
	case "Checker":
		return has[provider.Checker](h.Provider)
	case "Watcher":
		return has[provider.Watcher](h.Provider)
	case "Claimer":
		return has[provider.Claimer](h.Provider)
	case "Cleaner":
		return has[provider.Cleaner](h.Provider)
	case "Closer":
		return has[io.Closer](h.Provider)
	case "Secrets":
		s := h.Spec(provider.Owner{Installation: h.Installation, Namespace: "suite", Name: "any", UID: uuid()})
		return len(s.UserData) >= minSecret || len(s.Credentials.Password) >= minSecret
	}
	return !reflect.ValueOf(h).FieldByName(field).IsZero()
}

func has[I any](p provider.Provider) bool {
	_, ok := provider.As[I](p)
	return ok
}
