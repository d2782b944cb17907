package kubernetes

import (
	"bytes"
	"fmt"
	"strings"

	"golang.org/x/crypto/bcrypt"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// configDir is where a container finds the Secret of its instance.
const configDir = "/etc/fleetdesk"

// The keys of an instance's Secret.
const (
	keySquid    = "squid.conf"
	keyUsers    = "users"    // user:hash, where the Proxy has credentials
	keyUser     = "username" // these two for images that need them plain
	keyPassword = "password"
)

// maxPassword is what bcrypt takes, in bytes.
const maxPassword = 72

// squidCommand starts squid in the foreground, as one process.
var squidCommand = []string{"/usr/sbin/squid", "-N", "-f", configDir + "/" + keySquid}

// probeScript is a request through the proxy: a tunnel to the proxy itself, and
// a request inside it. It needs nothing outside the Pod, so that an origin that
// is down cannot make a whole fleet unready, and yet shows that the proxy takes
// clients, opens connections and carries bytes both ways (decision 0026).
const probeScript = `exec 3<>"/dev/tcp/$PROXY_ADDRESS/$PROXY_PORT" || exit 1
to="127.0.0.1:$PROXY_PORT"
printf 'CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n' "$to" "$to" >&3
IFS= read -r -t 4 line <&3 || { echo "no answer to CONNECT"; exit 1; }
case $line in "HTTP/1."[01]" 200"*) ;; *) echo "CONNECT was answered: ${line%?}"; exit 1 ;; esac
while IFS= read -r -t 4 line <&3 && [ -n "${line%$'\r'}" ]; do :; done
printf 'GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$to" >&3
IFS= read -r -t 4 line <&3 || { echo "no answer through the tunnel"; exit 1; }
case $line in "HTTP/1."*) exit 0 ;; esac
echo "through the tunnel came: ${line%?}"; exit 1
`

// squidConf is the configuration of an instance's squid.
func squidConf(port int, auth bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Written by proxy-operator for this instance; a change is lost.
http_port %d
visible_hostname fleetdesk-proxy
httpd_suppress_version_string on
pid_filename none
coredump_dir /tmp
access_log none
cache_log /dev/stderr
cache deny all
cache_mem 8 MB
shutdown_lifetime 3 seconds
via off
forwarded_for delete
follow_x_forwarded_for deny all

# The readiness probe comes from the Pod itself and goes back to it.
acl within src 127.0.0.1/32
acl itself dst 127.0.0.1/32
acl own_port port %d
http_access allow CONNECT within itself own_port

# Nobody gets at the Pod, its node, or a cloud's metadata.
acl inside dst %s
http_access deny inside
acl web port 80 443 1025-65535
http_access deny !web
`, port, port, innerText())
	if auth {
		fmt.Fprintf(&b, `
auth_param basic program /usr/lib/squid/basic_ncsa_auth %s/%s
auth_param basic children 4 startup=1 idle=1
auth_param basic realm fleetdesk
auth_param basic casesensitive on
auth_param basic credentialsttl 1 hour
acl known proxy_auth REQUIRED
http_access allow known
`, configDir, keyUsers)
	} else {
		b.WriteString("\nhttp_access allow all\n")
	}
	b.WriteString("http_access deny all\n")
	return b.String()
}

// secretData is the content of an instance's Secret.
func (p *Provider) secretData(w *wanted) (map[string][]byte, error) {
	data := map[string][]byte{}
	if w.image.squid {
		data[keySquid] = []byte(squidConf(w.port, !w.credentials.IsZero()))
	}
	if w.credentials.IsZero() {
		return data, nil
	}
	if w.image.plain {
		data[keyUser], data[keyPassword] = []byte(w.credentials.User), bytes.Clone(w.credentials.Password)
		return data, nil
	}
	hash, err := bcrypt.GenerateFromPassword(w.credentials.Password, p.cost)
	if err != nil {
		return nil, fault.New(fault.Invalid, "authSecretRef: the password cannot be hashed")
	}
	data[keyUsers] = append([]byte(w.credentials.User+":"), append(hash, '\n')...)
	return data, nil
}

// checkCredentials refuses what basic authentication or the file of users
// cannot carry.
func checkCredentials(c provider.Credentials, hashed bool) error {
	switch {
	case c.IsZero():
		return nil
	case c.User == "" || strings.ContainsAny(c.User, ":\x00\r\n"):
		return fault.New(fault.Invalid, "authSecretRef: the user name is empty or holds a ':' or a line's end, which basic authentication cannot carry")
	case bytes.ContainsAny(c.Password, "\x00\r\n"):
		return fault.New(fault.Invalid, "authSecretRef: the password holds a zero byte or a line's end, which squid cannot check")
	case hashed && strings.ContainsAny(c.User[:1], "# \t"):
		return fault.New(fault.Invalid, "authSecretRef: the user name begins with '#', a space or a tab, and squid takes such a line of its file of users for a comment: take another name")
	case hashed && len(c.Password) == 0:
		return fault.New(fault.Invalid, "authSecretRef: the password is empty, which squid lets nobody in with: give one")
	case hashed && len(c.Password) > maxPassword:
		return fault.Errorf(fault.Invalid, "authSecretRef: the password has %d bytes, and a bcrypt hash holds %d: take a shorter one", len(c.Password), maxPassword)
	}
	return nil
}
