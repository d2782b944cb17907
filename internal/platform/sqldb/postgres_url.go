package sqldb

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetdesk/internal/core/fault"
)

// urlForm is what a URL must look like.
const urlForm = "it should read postgres://user:password@host:5432/database?sslmode=verify-full, " +
	"with @ / ? # : % and spaces of user, password and database written as %40 %2F %3F %23 %3A %25 %20"

// urlParameters are the ones that may stand in a URL. Those that say again what
// the URL says, or lead to other sources (service, passfile), may not.
var urlParameters = [...]string{
	"host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslnegotiation", "sslsni",
	"channel_binding", "require_auth", "target_session_attrs", "connect_timeout", "application_name",
}

const connectTimeout = 5 * time.Second

// readURLFile returns what the file holds.
func readURLFile(path string) (string, error) {
	const limit = 64 << 10
	f, err := os.Open(path)
	if err != nil {
		return "", fault.Errorf(fault.Permanent, "file of the database URL: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return "", fault.Errorf(fault.Permanent, "file of the database URL: %w", err)
	}
	text := strings.TrimSpace(string(b))
	if text == "" || len(b) > limit {
		return "", fault.Errorf(fault.Invalid, "file of the database URL %s: it holds no URL: %s", path, urlForm)
	}
	return text, nil
}

func badURL(format string, args ...any) error {
	return fault.Errorf(fault.Invalid, "database URL: %s: %s", fmt.Sprintf(format, args...), urlForm)
}

// parseURL returns the settings of a URL, and a name of the database for
// messages. What may hold a piece of a password is in no error: where a
// password's sign is not escaped, any part of the URL may.
func parseURL(raw string) (cfg *pgxpool.Config, name string, err error) {
	u, err := splitURL(raw)
	if err != nil {
		return nil, "", err
	}
	q := u.Query()
	for key, values := range q {
		if !slices.Contains(urlParameters[:], key) || len(values) != 1 {
			return nil, "", badURL("a parameter is not known or is there twice (known: %s)", strings.Join(urlParameters[:], ", "))
		}
	}
	hosts, err := hostsOf(u, q)
	if err != nil {
		return nil, "", err
	}
	if err := settleTLS(hosts, q); err != nil {
		return nil, "", err
	}
	if len(hosts) > 1 && q.Get("target_session_attrs") == "" {
		q.Set("target_session_attrs", "read-write") // of several, the one that takes writes
	}
	if q.Get("application_name") == "" {
		q.Set("application_name", "fleetdesk")
	}
	database := u.Path[1:]
	u.Host, u.Path = "", "/"+database
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	cfg, err = pgxpool.ParseConfig(u.String())
	if err != nil {
		return nil, "", badURL("%s", cause(err, u.User))
	}

	// The parser looks at PG* variables and password files as well.
	c := cfg.ConnConfig
	c.Password, _ = u.User.Password()
	c.RuntimeParams = map[string]string{"application_name": q.Get("application_name")}
	if c.ConnectTimeout <= 0 || c.ConnectTimeout > connectTimeout {
		c.ConnectTimeout = connectTimeout
	}
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
	c.DialFunc = d.DialContext
	return cfg, strings.Join(hosts, ",") + "/" + database, nil
}

// splitURL finds the parts of a URL that has all of them.
func splitURL(raw string) (*url.URL, error) {
	switch {
	case !strings.HasPrefix(raw, "postgres://") && !strings.HasPrefix(raw, "postgresql://"):
		return nil, badURL("it does not begin with postgres://")
	case strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '#' }), strings.Count(raw, "@") > 1:
		return nil, badURL("it holds a sign that must be escaped")
	}
	u, err := url.Parse("postgresql" + raw[strings.Index(raw, "://"):])
	if err != nil {
		return nil, badURL("it holds a sign that must be escaped")
	}
	if _, err := url.ParseQuery(u.RawQuery); err != nil {
		return nil, badURL("its parameters cannot be read")
	}
	switch {
	case u.User.Username() == "":
		return nil, badURL("it names no user")
	case len(u.Path) < 2 || strings.Contains(u.Path[1:], "/"):
		return nil, badURL("it names no database")
	}
	return u, nil
}

// hostsOf returns the hosts with their ports, or sockets' folders, and sets them
// as parameters.
func hostsOf(u *url.URL, q url.Values) (all []string, err error) {
	list, ports := q.Get("host"), strings.Split(q.Get("port"), ",")
	if u.Host != "" {
		if q.Has("host") || q.Has("port") {
			return nil, badURL("it names its host or port twice")
		}
		list = u.Host
	}
	if list == "" {
		return nil, badURL("it names no host")
	}
	var hosts, numbers []string
	for i, host := range strings.Split(list, ",") {
		port := ports[0] // one is for all
		switch {
		case u.Host != "":
			one := url.URL{Host: host}
			host, port = one.Hostname(), one.Port()
		case i < len(ports):
			port = ports[i]
		}
		if port == "" {
			port = "5432"
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
			return nil, badURL("a host is empty, or a port is no number of 1 to 65535")
		}
		hosts, numbers = append(hosts, host), append(numbers, port)
		if strings.HasPrefix(host, "/") {
			all = append(all, host)
		} else {
			all = append(all, net.JoinHostPort(host, port))
		}
	}
	q.Set("host", strings.Join(hosts, ","))
	q.Set("port", strings.Join(numbers, ","))
	return all, nil
}

// settleTLS decides how a server must prove itself where the URL does not say.
func settleTLS(hosts []string, q url.Values) error {
	local := !slices.ContainsFunc(hosts, func(h string) bool { return !isLocal(h) })
	switch mode := q.Get("sslmode"); {
	case mode == "" && local:
		q.Set("sslmode", "prefer")
	case mode == "":
		q.Set("sslmode", "verify-full")
	case !slices.Contains([]string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}, mode):
		return badURL("sslmode is none of disable, allow, prefer, require, verify-ca, verify-full")
	case (mode == "allow" || mode == "prefer") && !local:
		return badURL("sslmode=allow and prefer may send the password in plain text: say verify-full, verify-ca or require, or disable if the network is trusted")
	}
	return nil
}

// isLocal reports whether a host (with port) or socket is of this machine.
func isLocal(hostport string) bool {
	if strings.HasPrefix(hostport, "/") {
		return true
	}
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// cause is why the parser refused a URL, without the URL, which the parser's own
// text repeats.
func cause(err error, user *url.Userinfo) string {
	text := "a parameter's value is not valid"
	if e, ok := errors.AsType[*pgconn.ParseConfigError](err); ok && errors.Unwrap(e) != nil {
		text = errors.Unwrap(e).Error() // a certificate's file, mostly
	}
	if password, _ := user.Password(); password != "" && strings.Contains(text, password) {
		return "a parameter's value is not valid"
	}
	return text
}
