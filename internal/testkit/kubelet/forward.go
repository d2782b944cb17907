package kubelet

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sys/unix"
)

// childConfig is the first line of a proxy's standard input.
type childConfig struct {
	// Users are the lines of a file of users and bcrypt hashes; Auth says that
	// there is such a file.
	Users string
	Auth  bool
	// Fold has names compared without regard to case, as squid does unless its
	// configuration says otherwise: it asks for the name in lower case.
	Fold bool
}

// Child is the whole of a proxy's process; in any other it returns at once.
func Child(args []string) {
	if len(args) < 2 || args[1] != childArg {
		return
	}
	serve()
	// Not os.Exit: with the race detector it sleeps for a second.
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
}

// serve serves until standard input ends, which it does with the test.
func serve() {
	in := json.NewDecoder(os.Stdin)
	var cfg childConfig
	if err := in.Decode(&cfg); err != nil {
		return
	}
	sock := os.NewFile(3, "listening socket")
	ln, err := net.FileListener(sock)
	if err != nil {
		return
	}
	_ = sock.Close()
	f := &forward{self: ln.Addr().(*net.TCPAddr).AddrPort(), known: map[string]bool{}}
	if cfg.Auth {
		f.users, f.fold = usersOf(cfg.Users), cfg.Fold
	}
	f.tr = &http.Transport{DialContext: f.dial, DisableCompression: true, DisableKeepAlives: true}
	srv := &http.Server{Handler: f, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(ln) }()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// usersOf reads a file of users and hashes as basic_ncsa_auth does.
func usersOf(file string) map[string]string {
	users := map[string]string{}
	for line := range strings.Lines(file) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" || strings.ContainsAny(line[:1], "# \t") {
			continue
		}
		if user, hash, ok := strings.Cut(line, ":"); ok {
			users[user] = hash
		}
	}
	return users
}

// forward is a forward proxy: requests in absolute form, and CONNECT.
type forward struct {
	self netip.AddrPort
	// users are hashes by name; nil lets everybody in.
	users map[string]string
	fold  bool
	tr    *http.Transport

	mu    sync.Mutex
	known map[string]bool // header values that were right once
}

func (f *forward) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	connect := r.Method == http.MethodConnect
	if !connect && !r.URL.IsAbs() {
		http.Error(w, "this is a forward proxy", http.StatusBadRequest)
		return
	}
	// As in the configuration for squid: the probe comes from the Pod itself and
	// goes back to it.
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	itself := connect && r.URL.Host == netip.AddrPortFrom(loopback, f.self.Port()).String() && (from.Addr() == f.self.Addr() || from.Addr() == loopback)
	if f.users != nil && !itself && !f.admits(r.Header.Get("Proxy-Authorization")) {
		w.Header().Set("Proxy-Authenticate", `Basic realm="fleetdesk"`)
		http.Error(w, "user and password are needed", http.StatusProxyAuthRequired)
		return
	}
	if connect {
		f.tunnel(w, r)
		return
	}
	r.RequestURI = ""
	r.Header.Del("Proxy-Authorization")
	r.Header.Del("Proxy-Connection")
	resp, err := f.tr.RoundTrip(r)
	if err != nil {
		http.Error(w, "no answer from the target", http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for key, values := range resp.Header {
		w.Header()[key] = values
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body)
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

func (f *forward) tunnel(w http.ResponseWriter, r *http.Request) {
	out, err := f.dial(r.Context(), "tcp", r.URL.Host)
	if err != nil {
		http.Error(w, "the target is not reached", http.StatusBadGateway)
		return
	}
	defer out.Close()
	in, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer in.Close()
	if _, err := io.WriteString(in, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(out, buffered)
		if c, ok := out.(*net.TCPConn); ok {
			_ = c.CloseWrite()
		}
	}()
	_, _ = io.Copy(in, out)
}

// dial leaves by the proxy's own address. Its loopback is itself.
func (f *forward) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	if to, err := netip.ParseAddrPort(addr); err == nil && to.Addr().IsLoopback() {
		if to == netip.AddrPortFrom(loopback, f.self.Port()) {
			addr = f.self.String()
		}
		d.LocalAddr = &net.TCPAddr{IP: f.self.Addr().AsSlice()}
	}
	return d.DialContext(ctx, network, addr)
}

func (f *forward) admits(header string) bool {
	f.mu.Lock()
	known := f.known[header]
	f.mu.Unlock()
	if known {
		return true
	}
	kind, rest, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(kind, "Basic") {
		return false
	}
	pair, err := base64.StdEncoding.DecodeString(rest)
	if err != nil {
		return false
	}
	user, password, _ := strings.Cut(string(pair), ":")
	if f.fold {
		user = strings.ToLower(user)
	}
	hash, ok := f.users[user]
	if !ok || password == "" || bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known[header] = true
	return true
}
