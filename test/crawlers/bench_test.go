package crawlers_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"fleetdesk/internal/core/lease"
)

// exampleName are the sites that the proxies know.
var exampleName = regexp.MustCompile(`\A[a-z0-9-]+\.example\.com\z`)

// bench is what the programs work in: the origin, the proxies and the desk.
type bench struct {
	programs map[string]string
	dir      string
	ca       *authority
	origin   *origin
	proxies  map[string]*forward // by key
	desk     *desk
	trip     *tripwire
	chromium string

	build     sync.Once
	goProgram string
}

// Keys of the proxies. In the order of their names they are handed out first.
const (
	keyBanned = "crawl.a-banned" // every site of the example domain refuses it
	keyDead   = "crawl.b-dead"   // it refuses connections
	keySix    = "crawl.six"      // it listens on an IPv6 address
)

// Pools.
const (
	poolAll  = "crawl.eu"   // the banned, the dead, and three that are well
	poolLive = "crawl.live" // those three
	poolDead = "crawl.dead" // the dead one
	poolSix  = "crawl.six"
)

// only is a pool of one proxy for a tool, and that proxy's key.
func only(tl tool) string { return "crawl.only-" + tl.name }

func startBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{programs: programs(t), dir: t.TempDir(), proxies: map[string]*forward{}}
	b.ca = newAuthority(t, b.dir)
	b.origin = startOrigin(t, b.ca)
	b.trip = startTripwire(t)
	b.desk = startDesk(t, b)
	for i, row := range []struct {
		key   string
		pools []string
	}{
		{keyBanned, []string{poolAll}},
		{keyDead, []string{poolAll, poolDead}},
		{"crawl.c-1", []string{poolAll, poolLive}},
		{"crawl.d-2", []string{poolAll, poolLive}},
		{"crawl.e-3", []string{poolAll, poolLive}},
	} {
		own := netip.AddrFrom4([4]byte{127, 64, 1, byte(1 + i)})
		b.proxies[row.key] = startForward(t, b, row.key, own, own)
		b.desk.put(t, row.key, row.pools...)
	}
	b.proxies[keyDead].stop()
	for i, tl := range tools() {
		own := netip.AddrFrom4([4]byte{127, 64, 1, byte(101 + i)})
		b.proxies[only(tl)] = startForward(t, b, only(tl), own, own)
		b.desk.do(t, lease.PutPool{Epoch: b.desk.epoch, Pool: lease.Pool{Name: only(tl)}})
		b.desk.put(t, only(tl), only(tl))
	}

	// Chromium has a store of authorities of its own; it is told of the key.
	b.chromium = filepath.Join(b.dir, "chromium")
	script := fmt.Sprintf("#!/bin/sh\nexec /usr/bin/chromium --ignore-certificate-errors-spki-list=%s \"$@\"\n", b.ca.pin(t))
	if err := os.WriteFile(b.chromium, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	// requests asks this module for the file of the authorities.
	certifi := fmt.Sprintf("def where():\n    return %q\n", b.ca.file)
	if err := os.WriteFile(filepath.Join(b.dir, "certifi.py"), []byte(certifi), 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// withSix adds the proxy on an IPv6 address; false where there are none.
func (b *bench) withSix(t *testing.T) bool {
	t.Helper()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return false
	}
	_ = l.Close()
	b.proxies[keySix] = startForward(t, b, keySix, netip.IPv6Loopback(), netip.MustParseAddr("127.64.1.66"))
	b.desk.put(t, keySix, poolSix)
	return true
}

// compiled builds the page's Go program once.
func (b *bench) compiled(t *testing.T) {
	t.Helper()
	b.build.Do(func() {
		source := filepath.Join(b.dir, "crawl.go")
		if err := os.WriteFile(source, []byte(b.programs["crawl.go"]), 0o600); err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(b.dir, "crawl")
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", out, source)
		cmd.Dir = "../.." // where fleetdesk/client is found
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("crawl.go does not build: %v\n%s", err, text)
		}
		b.goProgram = out
	})
	if b.goProgram == "" {
		t.Fatal("crawl.go does not build")
	}
}

// env is the whole environment of a program. Its home and temporary files are
// in its folder.
func (b *bench) env(dir string) []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=" + dir, "TMPDIR=" + dir,
		"DESK=" + b.desk.url, "TOKEN=" + b.desk.token,
		"CURL_CA_BUNDLE=" + b.ca.file, "SSL_CERT_FILE=" + b.ca.file, "NODE_EXTRA_CA_CERTS=" + b.ca.file,
		"PYTHONPATH=" + b.dir, "PYTHONDONTWRITEBYTECODE=1", "CHROMIUM=" + b.chromium,
	}
}

// Two environments that would lead a page astray: to another proxy, or around
// every proxy.
func (b *bench) elsewhere() []string {
	var env []string
	for _, name := range []string{"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"} {
		env = append(env, name+"=http://"+b.trip.address)
	}
	return append(env, "no_proxy=127.0.0.1", "NO_PROXY=127.0.0.1") // the desk's address
}

func (*bench) around() []string { return []string{"no_proxy=*", "NO_PROXY=*"} }

// exits are the addresses that the origin may see.
func (b *bench) exits() (all []netip.Addr) {
	for _, f := range b.proxies {
		all = append(all, f.exit)
	}
	return all
}

// direct returns the requests for a name that came by no proxy.
func (b *bench) direct(name string) []visit {
	exits := b.exits()
	return slices.DeleteFunc(b.origin.of(name), func(v visit) bool { return slices.Contains(exits, v.address) })
}

// secrets are texts that nobody may see.
func (b *bench) secrets() []string {
	all := []string{b.desk.token}
	for _, f := range b.proxies {
		p := f.access()
		escaped, _ := p.URL().User.Password()
		_, inURL, _ := strings.Cut(p.URL().User.String(), ":")
		all = append(all, f.password, escaped, inURL)
	}
	return all
}

// shown returns which secrets a text has.
func (b *bench) shown(text string) (all []string) {
	for _, s := range b.secrets() {
		if strings.Contains(text, s) {
			all = append(all, s)
		}
	}
	return all
}

// inProcessList looks for secrets where every user of a machine can read them,
// and in the environment of browsers, which run what a site sends them.
func (b *bench) inProcessList() (all []string) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		text := string(line)
		if strings.HasPrefix(text, "/usr/lib/chromium/") {
			env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
			text += string(env)
		}
		if len(b.shown(text)) > 0 {
			all = append(all, string(line))
		}
	}
	return all
}

// inFiles looks for secrets in what a program left in its folder.
func (b *bench) inFiles(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && len(b.shown(string(text))) > 0 {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Errorf("what is in %s: %v", dir, err)
	}
	return all
}

// tripwire is a proxy that nobody was told to use.
type tripwire struct {
	address string
	mu      sync.Mutex
	asked   []string
}

func startTripwire(t *testing.T) *tripwire {
	t.Helper()
	w := &tripwire{}
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.asked = append(w.asked, fmt.Sprintf("%s %s by %s", r.Method, r.RequestURI, r.UserAgent()))
		http.Error(rw, "nobody was told to come here", http.StatusTeapot)
	}))
	t.Cleanup(s.Close)
	w.address = s.Listener.Addr().String()
	return w
}

// sprung returns what was asked of it.
func (w *tripwire) sprung() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}
