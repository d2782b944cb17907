//go:build linux

package main

import (
	"context"
	"net"
	"os"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
)

// network gets an address for the first network card and returns it. It tries
// until it has one.
func network(ctx context.Context, host string) (net.IP, error) {
	if lo, err := netlink.LinkByName("lo"); err == nil {
		if err := netlink.LinkSetUp(lo); err != nil {
			say("lo: %v", err)
		}
	}
	card := waitCard()
	if err := netlink.LinkSetUp(card); err != nil {
		return nil, err
	}
	for {
		ip, err := lease(ctx, card, host)
		if err == nil {
			return ip, nil
		}
		say("DHCP: %v", err)
		time.Sleep(200 * time.Millisecond)
	}
}

// waitCard returns the first Ethernet device.
func waitCard() netlink.Link {
	for {
		all, _ := netlink.LinkList()
		for _, l := range all {
			if l.Attrs().Name != "lo" && l.Type() == "device" && len(l.Attrs().HardwareAddr) == 6 {
				return l
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func lease(ctx context.Context, card netlink.Link, host string) (net.IP, error) {
	c, err := nclient4.New(card.Attrs().Name, nclient4.WithTimeout(time.Second), nclient4.WithRetry(3))
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	l, err := c.Request(ctx, dhcpv4.WithOption(dhcpv4.OptHostName(host)))
	if err != nil {
		return nil, err
	}
	own := &net.IPNet{IP: l.ACK.YourIPAddr, Mask: l.ACK.SubnetMask()}
	if err := netlink.AddrReplace(card, &netlink.Addr{IPNet: own}); err != nil {
		return nil, err
	}
	if r := l.ACK.Router(); len(r) > 0 {
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: card.Attrs().Index, Gw: r[0]}); err != nil {
			return nil, err
		}
	}
	conf := ""
	for _, d := range l.ACK.DNS() {
		conf += "nameserver " + d.String() + "\n"
	}
	return own.IP, os.WriteFile("/etc/resolv.conf", []byte(conf), 0o644)
}
