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
		ProvisionTimeout:  15 * time.Minute,
		Workers:           16,
		KubeQPS:           200,
	}
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
