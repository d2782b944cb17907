//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// channel is the name of the agent's virtio port.
const channel = "org.qemu.guest_agent.0"

// agent answers QEMU's guest agent protocol on its virtio port, if there is one.
func agent() {
	for range 100 {
		ports, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, p := range ports {
			if b, _ := os.ReadFile(p); strings.TrimSpace(string(b)) == channel {
				serveAgent("/dev/" + filepath.Base(filepath.Dir(p)))
				return
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	say("no agent channel")
}

func serveAgent(device string) {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		say("agent: %v", err)
		return
	}
	say("agent on %s", device)
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil || len(bytes.TrimSpace(line)) == 0 {
			time.Sleep(50 * time.Millisecond) // nobody is connected on the host's side
			continue
		}
		if _, err := f.Write(answer(line)); err != nil {
			say("agent: %v", err)
		}
	}
}

// answer returns the line for one request.
func answer(line []byte) []byte {
	var q struct {
		Execute   string         `json:"execute"`
		Arguments map[string]any `json:"arguments"`
	}
	// A client that lost its place sends 0xff first.
	if err := json.Unmarshal(bytes.TrimLeft(line, "\xff"), &q); err != nil {
		return failure("GenericError", "this is no JSON object")
	}
	switch q.Execute {
	case "guest-sync":
		return success(q.Arguments["id"])
	case "guest-sync-delimited":
		return append([]byte{0xff}, success(q.Arguments["id"])...)
	case "guest-ping":
		return success(struct{}{})
	case "guest-info":
		return success(map[string]any{"version": "7.2.0-tinyguest", "supported_commands": []any{}})
	case "guest-get-osinfo":
		return success(map[string]any{"id": name, "name": "tinyguest", "pretty-name": "tinyguest"})
	case "guest-get-host-name":
		host, err := os.Hostname()
		if err != nil {
			return failure("GenericError", err.Error())
		}
		return success(map[string]any{"host-name": host})
	case "guest-network-get-interfaces":
		return interfaces()
	case "guest-shutdown":
		how := unix.LINUX_REBOOT_CMD_POWER_OFF
		if q.Arguments["mode"] == "reboot" {
			how = unix.LINUX_REBOOT_CMD_RESTART
		}
		powerOff(how)
		return failure("GenericError", "this machine does not end")
	default:
		return failure("CommandNotFound", fmt.Sprintf("The command %s has not been found", q.Execute))
	}
}

func success(value any) []byte { return encode(map[string]any{"return": value}) }

func failure(class, desc string) []byte {
	return encode(map[string]any{"error": map[string]any{"class": class, "desc": desc}})
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		b = []byte(`{"error":{"class":"GenericError","desc":"no answer"}}`)
	}
	return append(b, '\n')
}

func interfaces() []byte {
	all, err := net.Interfaces()
	if err != nil {
		return failure("GenericError", err.Error())
	}
	out := []any{}
	for _, i := range all {
		addresses, _ := i.Addrs()
		list := []any{}
		for _, a := range addresses {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			kind := "ipv4"
			if n.IP.To4() == nil {
				kind = "ipv6"
			}
			prefix, _ := n.Mask.Size()
			list = append(list, map[string]any{"ip-address": n.IP.String(), "ip-address-type": kind, "prefix": prefix})
		}
		out = append(out, map[string]any{"name": i.Name, "hardware-address": i.HardwareAddr.String(), "ip-addresses": list})
	}
	return success(out)
}
