package provider

import (
	"context"
	"fmt"
	"time"

	"fleetdesk/internal/core/fault"
)

// StepLimit bounds one call of a Provider. Longer work (an image upload) is a
// job that the provider owns and that repeated calls join.
const StepLimit = 30 * time.Second

// Provider makes, shows and removes instances. All methods may be called
// concurrently, also for one Proxy; all honour ctx and return within
// [StepLimit].
type Provider interface {
	// Place chooses where the Proxy's instance will be: a host, a zone, or the
	// provider's single place. The operator keeps the answer before it calls
	// Create, so that a crash between the two cannot put a second machine
	// elsewhere. Place changes nothing. A spec that names a place the provider
	// does not have is Invalid; no place with room is Quota.
	Place(ctx context.Context, spec Spec) (host string, err error)

	// Create brings the instance of spec.Owner.UID one bounded step nearer to
	// Running on spec.Host and returns its state; the caller repeats it until
	// the state is Running. It is idempotent by UID: a second call finds the
	// first's instance, finishes what a cancelled call left half done, and
	// starts an instance that exists but is stopped. Whatever it makes carries
	// the owner's tag from the moment it exists.
	Create(ctx context.Context, spec Spec) (Instance, error)

	// Get reads one instance directly. Only Get may say NotFound, and only
	// when the place was asked and answered that nothing is there: the
	// reconciler rebuilds on it. A host that is not in the configuration is
	// Permanent, one that does not answer Transient, Timeout or Unavailable.
	Get(ctx context.Context, ref Ref) (Instance, error)

	// Delete removes the instance and all that was made for it, by one bounded
	// step, and returns Gone only when nothing is left to pay for; Deleting
	// asks to be called again. Already gone, never made and unknown ids are
	// Gone without error; when the id is malformed or names nothing, the
	// owner's UID decides. What does not carry the owner's tag is not touched.
	// On a host that is not in the configuration Delete does nothing and
	// returns Abandoned: the host was taken out by a person, and the Proxy must
	// not hang for it.
	Delete(ctx context.Context, ref Ref) (State, error)

	// ListByTag returns one verdict for each host or zone of the provider: all
	// instances there that carry the installation's tag, or why that cannot be
	// said. A host's list is whole or an error; an instance that cannot be
	// read is listed as Unknown, never left out. The error is for the case
	// that not even the hosts can be named.
	ListByTag(ctx context.Context, installation string) ([]HostList, error)
}

// Owner is the tag that every instance carries: whose it is.
type Owner struct {
	// Installation is the identity of this operator's installation.
	Installation string
	// Namespace, Name and UID are the Proxy's.
	Namespace, Name, UID string
}

// Spec is what an instance shall be. It is complete: references are resolved
// by the caller.
type Spec struct {
	Owner Owner
	// Host is where: what Place answered. Place itself reads the wish here,
	// empty for any.
	Host string
	// Zone and NodeSelector narrow the choice, in the provider's own terms.
	Zone         string
	NodeSelector map[string]string
	// Image is a key of the provider's images or a direct reference; empty for
	// the provider's default.
	Image     string
	Resources Resources
	// UserData is cloud-init data, handed on byte for byte.
	UserData Secret
	// Port and Protocol are how the proxy will be reached.
	Port     int
	Protocol Protocol
	// Credentials are what clients of the proxy need; the zero value is none.
	Credentials Credentials
}

// Resources are the machine's size; zero means the provider's default.
type Resources struct {
	// MilliCPUs are thousandths of a CPU.
	MilliCPUs int64
	// MemoryBytes and DiskBytes are bytes.
	MemoryBytes, DiskBytes int64
}

// Protocol is the protocol that clients speak to a proxy.
type Protocol string

// The protocols of a Proxy.
const (
	HTTP   Protocol = "http"
	HTTPS  Protocol = "https"
	SOCKS5 Protocol = "socks5"
)

// Credentials are a user name and password that clients present to the proxy.
type Credentials struct {
	User     string
	Password Secret
}

// IsZero reports whether there are none.
func (c Credentials) IsZero() bool { return c.User == "" && len(c.Password) == 0 }

// Secret is bytes that must never be printed: every formatting verb and every
// encoder sees stars.
type Secret []byte

// Format prints stars for every verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("***")) }

// MarshalText gives encoders stars.
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }

// MarshalJSON gives encoders stars; []byte's own encoding would be base64.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"***"`), nil }

// Ref names an instance. ID is empty when the caller never learned it (a crash
// between Create and keeping its answer): the provider then looks by
// Owner.UID, on Host when that is given, and on all its hosts otherwise.
type Ref struct {
	ID    string
	Owner Owner
	Host  string
}

// Instance is what a provider made, as last seen.
type Instance struct {
	// ID is the providerID: unique, stable, strict to parse.
	ID    string
	Owner Owner
	// Host is where it is.
	Host  string
	State State
	// Address and Port are how clients reach the proxy; authoritative over the
	// spec's port. Empty until known.
	Address string
	Port    int
	// Message says, for people, which stage or fault the state stands for.
	Message string
	// Created is when it was made; zero when the provider cannot tell.
	Created time.Time
}

// State is what an instance is doing.
type State string

// The states. Gone and Abandoned come from Delete alone.
const (
	// Provisioning: being made; call Create again to go on.
	Provisioning State = "Provisioning"
	// Running: the machine runs and its address is known.
	Running State = "Running"
	// Stopped: it exists and does not run; Create starts it.
	Stopped State = "Stopped"
	// Impaired: it exists and is broken in a way that starting does not mend
	// (paused on an I/O error); nothing is done to it, and people are told.
	Impaired State = "Impaired"
	// Deleting: its removal has begun; call Delete again.
	Deleting State = "Deleting"
	// Unknown: it exists and cannot be read; nothing is done to it.
	Unknown State = "Unknown"
	// Gone: nothing of it is left.
	Gone State = "Gone"
	// Abandoned: its host has left the configuration; whatever is there was
	// left as it is and is a person's to remove.
	Abandoned State = "Abandoned"
)

// HostList is one host's verdict in a listing.
type HostList struct {
	Host      string
	Instances []Instance
	// Err says why the list cannot be whole; Instances is then empty.
	Err error
}

// Class returns the class of a provider's error.
func Class(err error) fault.Class { return fault.Of(err) }

type stepKey struct{}

// WithStepHook returns a context whose calls tell hook before each internal
// step; an error from hook ends the call there. It is how the conformance
// suite cancels, fails and kills a provider at every step.
func WithStepHook(ctx context.Context, hook func(step string) error) context.Context {
	return context.WithValue(ctx, stepKey{}, hook)
}

// Step marks a place between two effects of a provider: it returns the
// context's error, classed, when the call shall end here. Providers call it
// before each write to the outside.
func Step(ctx context.Context, name string) error {
	if hook, ok := ctx.Value(stepKey{}).(func(string) error); ok {
		if err := hook(name); err != nil {
			return fmt.Errorf("at step %s: %w", name, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("before step %s: %w", name, err)
	}
	return nil
}
