package probe

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"
)

// maxBody is how much of an answer's body is read, in bytes.
const maxBody = 4 << 10

// exitIP reads the address that the far end saw: from the header X-Client-IP,
// or from a body that is a bare address or JSON with "ip" or "origin". The zero
// Addr when it does not say.
func exitIP(h http.Header, body []byte) netip.Addr {
	if ip := parseIP(h.Get("X-Client-IP")); ip.IsValid() {
		return ip
	}
	if ip := parseIP(string(body)); ip.IsValid() {
		return ip
	}
	var said struct{ IP, Origin string }
	if json.Unmarshal(body, &said) != nil {
		return netip.Addr{}
	}
	if ip := parseIP(said.IP); ip.IsValid() {
		return ip
	}
	// Some services put a forwarded-for chain there; its last entry is the one
	// that really connected, the others are what a header claimed.
	return parseIP(said.Origin[strings.LastIndexByte(said.Origin, ',')+1:])
}

func parseIP(s string) netip.Addr {
	s = strings.TrimSpace(s)
	if len(s) > 64 {
		return netip.Addr{}
	}
	ip, err := netip.ParseAddr(s)
	if err != nil || ip.IsUnspecified() || ip.IsMulticast() {
		return netip.Addr{}
	}
	return ip.Unmap().WithZone("")
}
