package probe

import (
	"io"
	"net"
	"net/netip"
	"strconv"
)

// The bytes of SOCKS5 (RFC 1928) and its password method (RFC 1929).
const (
	socksVersion     = 5
	socksNoAuth      = 0
	socksPassword    = 2
	socksPasswordVer = 1
	socksCmdConnect  = 1
	socksIPv4        = 1
	socksName        = 3
	socksIPv6        = 4
)

var socksReplies = [...]string{
	1: "general failure", 2: "not allowed by its rules", 3: "network unreachable",
	4: "host unreachable", 5: "connection refused", 6: "TTL expired",
	7: "command not supported", 8: "address type not supported",
}

// socksGreet agrees on a method and presents the credentials. Only the method
// that fits is offered: a proxy that would take anybody although credentials
// were given is not the proxy that was described.
func socksGreet(rw io.ReadWriter, t Target) error {
	method := byte(socksNoAuth)
	if t.hasCredentials() {
		method = socksPassword
	}
	if _, err := rw.Write([]byte{socksVersion, 1, method}); err != nil {
		return socksBroken(t, err)
	}
	var answer [2]byte
	if _, err := io.ReadFull(rw, answer[:]); err != nil {
		return socksBroken(t, err)
	}
	switch {
	case answer[0] != socksVersion:
		return fail(BadResponse, nil, "proxy %s does not speak SOCKS5", t.hostPort())
	case answer[1] == 0xff:
		return authRefused(t)
	case answer[1] != method:
		return fail(BadResponse, nil, "proxy %s chose a SOCKS5 method that was not offered", t.hostPort())
	case method == socksNoAuth:
		return nil
	}
	msg := []byte{socksPasswordVer, byte(len(t.User))}
	msg = append(msg, t.User...)
	msg = append(msg, byte(len(t.Password)))
	msg = append(msg, t.Password...)
	if _, err := rw.Write(msg); err != nil {
		return socksBroken(t, err)
	}
	if _, err := io.ReadFull(rw, answer[:]); err != nil {
		return socksBroken(t, err)
	}
	if answer[0] != socksPasswordVer {
		return fail(BadResponse, nil, "proxy %s answers the SOCKS5 credentials with another protocol", t.hostPort())
	}
	if answer[1] != 0 {
		return authRefused(t)
	}
	return nil
}

// socksConnect greets and asks for a connection to addr, which is host:port.
// A host name is left to the proxy to resolve.
func socksConnect(rw io.ReadWriter, t Target, addr string) error {
	if err := socksGreet(rw, t); err != nil {
		return err
	}
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return fail(InvalidCheck, err, "the URL's host and port cannot be read")
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return fail(InvalidCheck, err, "the URL's port is not in 1..65535")
	}
	msg := []byte{socksVersion, socksCmdConnect, 0}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Zone() == "" {
		kind := byte(socksIPv6)
		if ip.Is4() {
			kind = socksIPv4
		}
		msg = append(append(msg, kind), ip.AsSlice()...)
	} else {
		if len(host) > 255 {
			return fail(InvalidCheck, nil, "the URL's host name is longer than 255 bytes")
		}
		msg = append(append(msg, socksName, byte(len(host))), host...)
	}
	if _, err := rw.Write(append(msg, byte(port>>8), byte(port))); err != nil {
		return socksBroken(t, err)
	}
	return socksReply(rw, t)
}

// socksReply reads the answer to a connect request, up to its last byte: what
// follows is the far end's.
func socksReply(rw io.Reader, t Target) error {
	var head [4]byte
	if _, err := io.ReadFull(rw, head[:]); err != nil {
		return socksBroken(t, err)
	}
	if head[0] != socksVersion {
		return fail(BadResponse, nil, "proxy %s answers the SOCKS5 request with another protocol", t.hostPort())
	}
	if code := int(head[1]); code != 0 {
		text := "unknown code"
		if code < len(socksReplies) {
			text = socksReplies[code]
		}
		return fail(ProxyRefused, nil, "proxy %s answered the SOCKS5 request with code %d (%s)", t.hostPort(), code, text)
	}
	var rest int
	switch head[3] {
	case socksIPv4:
		rest = 4
	case socksIPv6:
		rest = 16
	case socksName:
		var length [1]byte
		if _, err := io.ReadFull(rw, length[:]); err != nil {
			return socksBroken(t, err)
		}
		rest = int(length[0])
	default:
		return fail(BadResponse, nil, "proxy %s answers with an unknown SOCKS5 address type", t.hostPort())
	}
	var tail [255 + 2]byte
	if _, err := io.ReadFull(rw, tail[:rest+2]); err != nil {
		return socksBroken(t, err)
	}
	return nil
}

// socksBroken is for a read or write that failed; whether it was a deadline is
// the caller's to say, since a closed connection looks the same.
func socksBroken(t Target, err error) error {
	return fail(BadResponse, err, "proxy %s closed the connection during the SOCKS5 handshake", t.hostPort())
}
