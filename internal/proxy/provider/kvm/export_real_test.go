//go:build integration

package kvm

import (
	"log/slog"

	"fleetdesk/internal/proxy/provider/kvm/link"
)

// DialOverSSH is the dialer that a provider of that section has by itself, for
// tests that stand between the two.
func DialOverSSH(s Section, log *slog.Logger) (link.Dialer, error) {
	conf, err := settle(s)
	if err != nil {
		return nil, err
	}
	return (&Provider{conf: conf, log: log}).overSSH(), nil
}
