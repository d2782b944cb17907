package seed

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"fmt"
	"slices"
)

// agentScript installs and starts the guest agent.
//
//go:embed agent.sh
var agentScript string

// VendorData returns the vendor-data of a guest: nil when there is none, the
// own data byte for byte when the agent is not asked for, the agent's script
// alone when there is no own data, and else a MIME archive of both.
//
// In the archive the own data are a part of text/plain, whose kind cloud-init
// finds out by itself from the first line (a cloud-config, a script, a jinja
// template …): nothing here looks into them. They are always in base64, since
// cloud-init's reader spoils everything beyond ASCII in a part that is not. Of
// what has no such first line (gzip, another MIME archive) cloud-init makes
// nothing there.
//
// A user's cloud-config with "vendor_data: {enabled: false}" turns all of it off,
// the agent's script too: the guest then has an agent only when its image or its
// user installs one, and its address is learned from DHCP and ARP.
func VendorData(installAgent bool, own []byte) []byte {
	switch {
	case !installAgent && len(own) == 0:
		return nil
	case !installAgent:
		return own
	case len(own) == 0:
		return []byte(agentScript)
	}
	encoded := lines(base64.StdEncoding.EncodeToString(own))
	boundary := boundaryFor(encoded, []byte(agentScript))
	var b bytes.Buffer
	// The header is first: cloud-init looks for it in the first bytes alone.
	fmt.Fprintf(&b, "Content-Type: multipart/mixed; boundary=%q\nMIME-Version: 1.0\n\n", boundary)
	fmt.Fprintf(&b, "--%s\nContent-Type: text/plain\nContent-Transfer-Encoding: base64\n"+
		"Content-Disposition: attachment; filename=\"vendor-data\"\n\n%s\n", boundary, encoded)
	fmt.Fprintf(&b, "--%s\nContent-Type: text/x-shellscript\n"+
		"Content-Disposition: attachment; filename=\"fleetdesk-guest-agent.sh\"\n\n%s\n", boundary, agentScript)
	fmt.Fprintf(&b, "--%s--\n", boundary)
	return b.Bytes()
}

// lineLength is how long a line of base64 may be in a mail.
const lineLength = 76

// lines breaks a text into lines.
func lines(s string) []byte {
	var b bytes.Buffer
	for len(s) > lineLength {
		b.WriteString(s[:lineLength])
		b.WriteByte('\n')
		s = s[lineLength:]
	}
	b.WriteString(s)
	return b.Bytes()
}

// boundaryFor returns a boundary that occurs in no part, the same for the same
// parts. It ends, since each try takes room in a part.
func boundaryFor(parts ...[]byte) string {
	for n := 0; ; n++ {
		boundary := fmt.Sprintf("=_fleetdesk_%d", n)
		if !slices.ContainsFunc(parts, func(p []byte) bool { return bytes.Contains(p, []byte(boundary)) }) {
			return boundary
		}
	}
}
