// Package operator is the composition root of proxy-operator: it reads the
// command line, wires the parts together and runs them.
package operator

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"time"

	"fleetdesk/internal/core/fault"
	providers "fleetdesk/internal/proxy/config"
	"fleetdesk/internal/proxy/provider"
)

// Options are the operator's settings; each is a flag of the same meaning.
type Options struct {
	// ProvidersConfig is the providers file; empty for one provider "local".
	ProvidersConfig string
	// StateDir is where the operator and its providers keep files: an absolute
	// path to a folder that exists or can be made.
	StateDir string
	// Namespace is the operator's own: part of the installation's identity,
	// and home of its Lease and token Secret.
	Namespace string
	// LeaderElect is for more than one replica: controllers run on one.
	LeaderElect bool

	// APIBind is where the client API listens, host:port.
	APIBind string
	// APITLSCert and APITLSKey are PEM files; both or neither.
	APITLSCert, APITLSKey string
	// APIAllowPlaintext permits an address other than loopback without TLS.
	APIAllowPlaintext bool
	// APIRate is how many requests a second one token may make, sustained; -1
	// for no limit.
	APIRate float64
	// Database is the desk's SQLite file; empty for desk.db in StateDir.
	// DatabaseURLFile is a file with the URL of a PostgreSQL database instead,
	// which several replicas can share.
	Database, DatabaseURLFile string
	// AdminTokenFile is where the first admin token goes; empty for
	// admin-token in StateDir. AdminTokenSecret names a Secret of Namespace
	// instead.
	AdminTokenFile, AdminTokenSecret string

	// OriginBind is where the operator's own origin listens, host:port; empty
	// for no origin.
	OriginBind string
	// OriginURL is where proxies reach it; empty for the bound address.
	OriginURL string
	// HealthURL is checked through Proxies that name no URL of their own;
	// empty for the operator's own origin.
	HealthURL string
	// HealthAllowCIDRs are ranges that the operator's own control requests may
	// reach besides public ones.
	HealthAllowCIDRs []netip.Prefix
	// HealthConcurrency is how many checks run at once.
	HealthConcurrency int

	// ListInterval is the time from one listing of a provider's hosts to the
	// next.
	ListInterval time.Duration
	// CheckInterval is the time from one check of a provider's health to the
	// next; CheckTimeout bounds one, 0 for the shorter of 15 s and the interval.
	CheckInterval, CheckTimeout time.Duration
	// SweepInterval is the time from one sweep for leftovers to the next.
	// SweepGrace is how long ago an orphan must have been made and first been
	// seen as one before it is removed. SweepDryRun only reports.
	SweepInterval, SweepGrace time.Duration
	SweepDryRun               bool
	// ProvisionTimeout is how long an instance may take to run before its
	// Proxy's phase says Failed.
	ProvisionTimeout time.Duration
	// Workers is how many Proxies are reconciled at once.
	Workers int
	// KubeQPS bounds requests to the Kubernetes API, per second.
	KubeQPS float32

	// Halt ends the processes of local proxies when the operator stops. Nothing
	// is deleted: the next start starts them again.
	Halt bool
	// LocalCommand starts a local proxy: the program and its first arguments.
	LocalCommand []string
	// Build makes a provider from its entry, builtin being how it is done by
	// default; nil for that. Drills put their faults there.
	Build func(e providers.Entry, builtin func() (provider.Provider, error)) (provider.Provider, error)
	// Log hears everything; nil discards.
	Log *slog.Logger
	// Ready is called once when the API serves and the caches are filled.
	Ready func(Endpoints)
}

// Endpoints is where a running operator is reached.
type Endpoints struct {
	// API is the base URL of the client API; Origin that of the origin, empty
	// for none.
	API, Origin string
	// AdminTokenFile holds the first admin token; empty when it went to a
	// Secret. NewAdminToken tells that this start made it.
	AdminTokenFile string
	NewAdminToken  bool
}

// Streams are the program's own input and outputs.
type Streams struct {
	In            io.Reader
	Out, Err      io.Writer
	OutIsTerminal bool
}

// Defaults returns the settings that a start without flags has.
func Defaults() Options {
	return Options{
		Namespace:         "fleetdesk-system",
		APIBind:           "127.0.0.1:8700",
		APIRate:           50,
		HealthConcurrency: 32,
		ListInterval:      15 * time.Second,
		CheckInterval:     60 * time.Second,
		SweepInterval:     time.Minute,
		SweepGrace:        10 * time.Minute,
		ProvisionTimeout:  15 * time.Minute,
		Workers:           16,
		KubeQPS:           200,
	}
}

// defaultCheckTimeout bounds a check whose interval is longer.
const defaultCheckTimeout = 15 * time.Second

// checkTimeout is the time that one check has.
func (o *Options) checkTimeout() time.Duration {
	if o.CheckTimeout > 0 {
		return o.CheckTimeout
	}
	return min(defaultCheckTimeout, o.CheckInterval)
}

// unspecified tells whether a host:port is every address of the machine.
func unspecified(bind string) bool {
	host, _, err := net.SplitHostPort(bind)
	if err != nil {
		return false // told by the listener
	}
	addr, err := netip.ParseAddr(host)
	return host == "" || (err == nil && addr.IsUnspecified())
}

// webURL tells whether a setting is empty or an http or https URL.
func webURL(s string) bool {
	if s == "" {
		return true
	}
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// maxAPIRate is where a limit on requests a second stops to be one.
const maxAPIRate = 1e6

// validate refuses combinations that cannot work, naming the flag.
func (o *Options) validate() error {
	refuse := func(format string, args ...any) error { return fault.Errorf(fault.Invalid, format, args...) }
	switch {
	case o.StateDir == "":
		return refuse("--state-dir is needed: a folder where the operator keeps its files")
	case o.Namespace == "":
		return refuse("--namespace must not be empty: it is part of this installation's identity")
	case (o.APITLSCert == "") != (o.APITLSKey == ""):
		return refuse("--api-tls-cert and --api-tls-key go together: give both or neither")
	case !(o.APIRate > 0 && o.APIRate <= maxAPIRate) && o.APIRate != -1: // also for NaN
		return refuse("--api-rate=%v: want more than 0 and at most %v requests a second, or -1 for no limit", o.APIRate, float64(maxAPIRate))
	case o.Database != "" && o.DatabaseURLFile != "":
		return refuse("--database and --database-url-file exclude each other: one is an SQLite file, the other leads to a PostgreSQL database")
	case o.ListInterval < time.Second:
		return refuse("--list-interval=%s is too short: at least 1s", o.ListInterval)
	case o.CheckInterval < time.Second:
		return refuse("--provider-check-interval=%s is too short: at least 1s", o.CheckInterval)
	case o.CheckTimeout < 0:
		return refuse("--provider-check-timeout=%s: want 0, for the shorter of %s and the interval, or a time up to --provider-check-interval=%s", o.CheckTimeout, defaultCheckTimeout, o.CheckInterval)
	case o.CheckTimeout > o.CheckInterval:
		return refuse("--provider-check-timeout=%s is longer than --provider-check-interval=%s: checks of one host would overlap; shorten the one or lengthen the other", o.CheckTimeout, o.CheckInterval)
	case o.SweepInterval < time.Second || o.SweepInterval > time.Hour:
		return refuse("--gc-interval=%s: want 1s to 1h", o.SweepInterval)
	case o.SweepGrace < time.Second:
		return refuse("--gc-grace=%s is too short: at least 1s; --gc-dry-run has sweeps remove nothing", o.SweepGrace)
	case o.ProvisionTimeout < time.Second:
		return refuse("--provision-timeout=%s is too short: at least 1s", o.ProvisionTimeout)
	case o.Workers < 1 || o.Workers > 1000:
		return refuse("--workers=%d: want 1 to 1000", o.Workers)
	case o.HealthConcurrency < 1 || o.HealthConcurrency > 10000:
		return refuse("--health-concurrency=%d: want 1 to 10000", o.HealthConcurrency)
	case o.KubeQPS <= 0:
		return refuse("--kube-api-qps=%v: want more than 0", o.KubeQPS)
	case o.OriginURL != "" && o.OriginBind == "":
		return refuse("--origin-url needs --origin-bind-address, where the origin listens")
	case o.OriginURL == "" && unspecified(o.OriginBind):
		return refuse("--origin-bind-address=%s: say with --origin-url at which address proxies reach it", o.OriginBind)
	case !webURL(o.OriginURL):
		return refuse("--origin-url=%q: want a URL such as http://origin.example.com:8701", o.OriginURL)
	case !webURL(o.HealthURL):
		return refuse("--health-check-url=%q: want a URL such as http://example.com/generate_204", o.HealthURL)
	case o.AdminTokenFile != "" && o.AdminTokenSecret != "":
		return refuse("--admin-token-file and --admin-token-secret exclude each other")
	}
	return nil
}
