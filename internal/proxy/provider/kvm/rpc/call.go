package rpc

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	libvirt "github.com/digitalocean/go-libvirt"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// outcome is what one call of the library gave.
type outcome[T any] struct {
	value T
	err   error
}

// do runs one procedure. It waits for a slot and for the answer until ctx
// ends; then it leaves, and the goroutine keeps the slot until the answer
// comes or the connection ends, since the daemon counts it until then too.
func do[T any](ctx context.Context, c *Conn, rpc string, ask func(*libvirt.Libvirt) (T, error)) (T, error) {
	var none T
	if err := c.take(ctx, c.calls, rpc); err != nil {
		return none, err
	}
	answer := make(chan outcome[T], 1)
	c.pulse.expect()
	started := c.spawn(func() {
		defer func() { <-c.calls }()
		defer c.pulse.settle()
		v, err := protected(c, rpc, func() (T, error) { return ask(c.lib) })
		answer <- outcome[T]{v, err}
	})
	if !started {
		c.pulse.settle()
		<-c.calls
		return none, ended(rpc, c.guard.reason())
	}
	select {
	case o := <-answer:
		return o.value, c.explain(rpc, o.err)
	case <-ctx.Done():
	case <-c.guard.done:
	}
	select {
	case o := <-answer:
		return o.value, c.explain(rpc, o.err)
	default:
	}
	if err := c.guard.over(); err != nil {
		return none, ended(rpc, err)
	}
	return none, c.left(ctx, rpc)
}

// act is do for procedures that return nothing.
func act(ctx context.Context, c *Conn, rpc string, ask func(*libvirt.Libvirt) error) error {
	_, err := do(ctx, c, rpc, func(l *libvirt.Libvirt) (struct{}, error) { return struct{}{}, ask(l) })
	return err
}

// take waits for a slot.
func (c *Conn) take(ctx context.Context, slots chan struct{}, rpc string) error {
	if ctx.Err() != nil {
		return c.unasked(ctx, rpc)
	}
	if err := c.guard.over(); err != nil {
		return ended(rpc, err)
	}
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return c.unasked(ctx, rpc)
	case <-c.guard.done:
		return ended(rpc, c.guard.reason())
	}
}

// protected turns a panic of the library into the end of the connection. The
// guard leaves none that we know of.
func protected[T any](c *Conn, rpc string, ask func() (T, error)) (v T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = c.guard.nonsense("the answer to %s cannot be decoded (%v)", rpc, r)
		}
	}()
	return ask()
}

// left is the error of a caller whose context ended.
func (c *Conn) left(ctx context.Context, rpc string) error {
	err := ctx.Err()
	class := fault.Of(err)
	return fault.Errorf(class, "no answer from libvirtd on %s to %s yet; whether it was done is unknown: %w", c.host, rpc, err)
}

// unasked is the error of a caller whose context ended before its call began.
func (c *Conn) unasked(ctx context.Context, rpc string) error {
	err := ctx.Err()
	return fault.Errorf(fault.Of(err), "%s was not asked of libvirtd on %s, which is busy with other calls: %w", rpc, c.host, err)
}

// ended is the error of a call whose connection ended.
func ended(rpc string, reason error) error { return fmt.Errorf("%s: %w", rpc, reason) }

// explain gives the library's error the words and the class of this package.
func (c *Conn) explain(rpc string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[libvirt.Error](err); ok {
		answer := virt.Fault(virt.Code(e.Code), e.Message)
		switch rpc {
		case "virDomainDefineXML", "virDomainCreate":
			answer = virt.FaultOfDomain(virt.Code(e.Code), e.Message)
		}
		return fmt.Errorf("libvirtd on %s: %s: %w", c.host, rpc, answer)
	}
	if errors.Is(err, libvirt.ErrUnsupported) {
		return fmt.Errorf("libvirtd on %s: %s: %w", c.host, rpc,
			virt.Fault(virt.CodeNoSupport, "this libvirt is too old for the call"))
	}
	if reason := c.guard.over(); reason != nil {
		return ended(rpc, reason)
	}
	// What is left is a payload that the library could not decode.
	return ended(rpc, c.guard.nonsense("the answer to %s cannot be decoded: %v", rpc, err))
}

// Ways of authentication, as REMOTE_AUTH_* has them.
const (
	authSASL   = 1
	authPolkit = 2
)

// refused is explain for the opening calls, with what a person can do.
func (c *Conn) refused(err error) error {
	e, ok := errors.AsType[libvirt.Error](err)
	if !ok {
		return c.explain("virConnectOpen", err)
	}
	answer := c.explain("virConnectOpen", err)
	ways := c.guard.authentication()
	switch {
	case slices.Contains(ways, authSASL):
		return fault.Errorf(fault.Denied, "%w. The daemon wants SASL, which is not spoken here: set auth_unix_rw to \"none\" "+
			"or \"polkit\" in libvirtd.conf on the host and let the SSH user into the socket's group", answer)
	case slices.Contains(ways, authPolkit):
		return fault.Errorf(fault.Denied, "%w. Polkit does not let the SSH user manage libvirt: add the user to the group "+
			"libvirt on the host, or a polkit rule for org.libvirt.unix.manage", answer)
	case virt.Code(e.Code) == virt.CodeNoSupport, virt.Code(e.Code) == codeNoConnect:
		return fault.Errorf(fault.Permanent, "%w. The daemon has no qemu:///system: install libvirt's QEMU driver on the host, "+
			"and name the socket of libvirtd or of virtqemud", answer)
	}
	return answer
}

const codeNoConnect virt.Code = 5

// maxText is the most of a daemon's error text that is kept, in bytes.
const maxText = 2 << 10

// errorText is a daemon's text made fit to be shown and for the library, which
// takes any text with "unknown procedure" in it, such as a name, for that
// error.
func errorText(code int32, message string) string {
	s := clean(message)
	if s == "" {
		s = "the daemon gave no reason"
	}
	if virt.Code(code) != virt.CodeRPC {
		s = strings.ReplaceAll(s, "unknown procedure", "unknown\u00a0procedure")
	}
	return s
}

// clean bounds a text of the peer and takes control characters out of it.
func clean(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), maxText)], "")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
	// A text that differs with each try would be a change of status each time.
	return strings.TrimSpace(qemuTime.ReplaceAllString(s, ""))
}

// qemuTime is what QEMU begins a line of its log with.
var qemuTime = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z `)
