package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/rpc"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

func TestEveryMethodIsTried(t *testing.T) {
	conn := reflect.TypeFor[virt.Conn]()
	for i := range conn.NumMethod() {
		if _, there := everyCall[conn.Method(i).Name]; !there {
			t.Errorf("%s has no row in everyCall", conn.Method(i).Name)
		}
	}
}

func TestAnswers(t *testing.T) {
	c, p := connect(t, rpc.Options{}, nil)
	for name, tc := range map[string]struct {
		procs []uint32
		want  any
	}{
		"ConnectGetLibVersion":         {[]uint32{procLibVersion}, virt.Version(9_000_000)},
		"ConnectGetHostname":           {[]uint32{procHostname}, "box-1"},
		"ConnectGetCapabilities":       {[]uint32{procCaps}, "<capabilities/>"},
		"ConnectGetDomainCapabilities": {[]uint32{procDomainCaps}, "<domainCapabilities/>"},
		"ConnectGetAllDomainStats": {[]uint32{procAllStats}, []virt.DomainState{
			{Domain: virt.Domain{Name: "one", UUID: uuidText, ID: 7}, State: virt.StateRunning, Reason: 5},
			{Domain: virt.Domain{Name: "two", UUID: uuidText, ID: -1}, State: virt.StateShutoff},
		}},
		"ConnectDomainEventRegisterAny": {[]uint32{procRegister}, true},
		"DomainLookupByName":            {[]uint32{procByName}, someDomain},
		"DomainLookupByUUID":            {[]uint32{procByUUID}, someDomain},
		"DomainGetState":                {[]uint32{procGetState}, []int32{int32(virt.StatePaused), int32(virt.PausedIOError)}},
		"DomainGetMetadata":             {[]uint32{procGetMetadata}, "<mark/>"},
		"DomainSetMetadata":             {[]uint32{procSetMetadata}, nil},
		"DomainDefineXML":               {[]uint32{procDefine}, virt.Domain{Name: "one", UUID: uuidText, ID: -1}},
		"DomainCreate":                  {[]uint32{procCreate}, nil},
		"DomainDestroy":                 {[]uint32{procDestroy}, nil},
		"DomainUndefineFlags":           {[]uint32{procUndefine}, nil},
		"DomainInterfaceAddresses": {[]uint32{procAddresses}, []virt.Interface{
			{Name: "eth0", MAC: "52:54:00:ab:cd:ef", Addresses: []virt.Address{{IP: "192.0.2.7", Prefix: 24}, {IP: "2001:db8::7", Prefix: 64}}},
			{Name: "lo"},
		}},
		"NetworkLookupByName":     {[]uint32{procNetByName, procNetActive}, true},
		"StoragePoolLookupByName": {[]uint32{procPoolByName}, somePool},
		"StoragePoolGetInfo": {[]uint32{procPoolInfo}, virt.PoolInfo{
			State: virt.PoolRunning, Capacity: 100, Allocation: 40, Available: 60,
		}},
		"StoragePoolGetXMLDesc": {[]uint32{procPoolXML}, "<pool/>"},
		"StoragePoolListAllVolumes": {[]uint32{procListVolumes}, []virt.Volume{
			{Pool: "default", Name: "a", Key: "/p/a"}, {Pool: "default", Name: "b", Key: "/p/b"},
		}},
		"StorageVolLookupByName": {[]uint32{procVolByName}, someVolume},
		"StorageVolGetInfo":      {[]uint32{procVolInfo}, virt.VolumeInfo{Capacity: 1000, Physical: 200}},
		"StorageVolGetPath":      {[]uint32{procVolPath}, "/p/a"},
		"StorageVolCreateXML":    {[]uint32{procVolCreate}, someVolume},
		"StorageVolDelete":       {[]uint32{procVolDelete}, nil},
		"StorageVolUpload":       {[]uint32{procUpload}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(p.procedures())
			got, err := everyCall[name](t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.procs, p.procedures()[before:]); diff != "" {
				t.Errorf("procedures: %s", diff)
			}
		})
	}
}

func TestQuestions(t *testing.T) {
	c, p := connect(t, rpc.Options{}, nil)
	for name, tc := range map[string]struct {
		reason string
		want   []byte
	}{
		"ConnectGetDomainCapabilities": {"the provider's machine, by name", xdr(0, 1, "x86_64", 1, "q35", 1, "kvm", 0)},
		"ConnectGetAllDomainStats":     {"the state alone; no flags means active and inactive ones", xdr(0, 1, 0)},
		"DomainSetMetadata": {
			"the running and the persistent definition",
			xdr("one", uuidBytes, 7, 2, 1, "<mark/>", 1, virt.MetadataPrefix, 1, virt.MetadataNamespace, 3),
		},
		"DomainGetMetadata":         {"the definition in force", xdr("one", uuidBytes, 7, 2, 1, virt.MetadataNamespace, 0)},
		"DomainUndefineFlags":       {"flags as given", xdr("one", uuidBytes, 7, 4)},
		"DomainInterfaceAddresses":  {"the source as given", xdr("one", uuidBytes, 7, 1, 0)},
		"StoragePoolListAllVolumes": {"with results", xdr("default", uuidBytes, 1, 0)},
		"StorageVolGetInfo":         {"the file's length, not what it occupies", xdr("default", "a", "/p/a", 1)},
		"StorageVolDelete":          {"no flags", xdr("default", "a", "/p/a", 0)},
		"StorageVolUpload":          {"from the beginning, length unknown", xdr("default", "a", "/p/a", uint64(0), uint64(0), 0)},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := everyCall[name](t.Context(), c); err != nil {
				t.Fatal(err)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			if diff := cmp.Diff(tc.want, p.seen[len(p.seen)-1].payload); diff != "" {
				t.Errorf("%s: %s", tc.reason, diff)
			}
		})
	}
}

func TestMetadataOfAStoppedDomain(t *testing.T) {
	c, p := connect(t, rpc.Options{}, on(procSetMetadata, func(p *peer, in packet) {
		if in.payload[len(in.payload)-1] == 3 {
			p.send(in.answers(reply, failed, remoteError(55, "Requested operation is not valid: domain is not running")))
			return
		}
		p.right(in)
	}))
	if err := c.DomainSetMetadata(t.Context(), someDomain, "<mark/>"); err != nil {
		t.Fatal(err)
	}
	last := p.seen[len(p.seen)-1].payload
	if last[len(last)-1] != 2 {
		t.Errorf("the second attempt has the impact %d, not the persistent definition's", last[len(last)-1])
	}
}

func TestMetadataIsSetOnceMoreForThatReasonAlone(t *testing.T) {
	c, p := connect(t, rpc.Options{}, on(procSetMetadata, func(p *peer, in packet) {
		p.send(in.answers(reply, failed, remoteError(42, "Domain not found")))
	}))
	if err := c.DomainSetMetadata(t.Context(), someDomain, "<mark/>"); fault.Of(err) != fault.NotFound {
		t.Error(err)
	}
	if n := len(p.procedures()); n != 3 { // auth list, open, one
		t.Errorf("%d calls", n)
	}
}

func TestStoppedNetwork(t *testing.T) {
	c, _ := connect(t, rpc.Options{}, on(procNetActive, func(p *peer, in packet) { p.send(in.answers(reply, ok, xdr(0))) }))
	if active, err := c.NetworkLookupByName(t.Context(), "default"); active || err != nil {
		t.Errorf("%v, %v", active, err)
	}
}

func TestErrorsOfTheDaemon(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		proc   uint32
		call   string
		code   int
		text   string
		class  fault.Class
		want   string
	}{
		"no domain":              {"a direct look-up may say so", procByName, "DomainLookupByName", 42, "Domain not found", fault.NotFound, "libvirtd on box-1: virDomainLookupByName: Domain not found (VIR_ERR_NO_DOMAIN)"},
		"no network at start":    {"the domain is there; what it names is not", procCreate, "DomainCreate", 43, "Network not found: no network with matching name 'x'", fault.Permanent, "VIR_ERR_NO_NETWORK"},
		"no network at define":   {"the same", procDefine, "DomainDefineXML", 43, "Network not found", fault.Permanent, "VIR_ERR_NO_NETWORK"},
		"no domain at start":     {"gone is gone", procCreate, "DomainCreate", 42, "Domain not found", fault.NotFound, "VIR_ERR_NO_DOMAIN"},
		"no network":             {"asked for itself", procNetByName, "NetworkLookupByName", 43, "Network not found", fault.NotFound, "VIR_ERR_NO_NETWORK"},
		"unknown procedure":      {"an old daemon", procAllStats, "ConnectGetAllDomainStats", 39, "unknown procedure: 344", fault.Unsupported, "too old"},
		"a name like an error":   {"the library reads that text as another error", procByName, "DomainLookupByName", 42, "no domain with matching name 'unknown procedure'", fault.NotFound, "VIR_ERR_NO_DOMAIN"},
		"control characters":     {"a daemon's text goes to terminals and logs", procByName, "DomainLookupByName", 42, "a\x1b[31mb\nc\x00d", fault.NotFound, "a [31mb c d"},
		"no text":                {"something is said all the same", procByName, "DomainLookupByName", 42, "", fault.NotFound, "gave no reason"},
		"text without an end":    {"cut", procByName, "DomainLookupByName", 42, strings.Repeat("ä", 5_000), fault.NotFound, "ää (VIR_ERR_NO_DOMAIN)"},
		"an unknown code":        {"its number is said", procByName, "DomainLookupByName", 9999, "new", fault.Transient, "VIR_ERR_9999"},
		"inactive pool":          {"an inactive pool read as volume missing (terraform-provider-libvirt 52)", procVolByName, "StorageVolLookupByName", 55, "Requested operation is not valid: storage pool 'default' is not active", fault.Unavailable, "not active"},
		"asynchronous jobs":      {"pool has asynchronous jobs running (virt-manager 498)", procVolCreate, "StorageVolCreateXML", 1, "internal error: pool 'default' has asynchronous jobs running.", fault.Transient, "jobs"},
		"missing bridge":         {"a person must make it", procCreate, "DomainCreate", 38, "Cannot get interface MTU on 'nobr0': No such device", fault.Permanent, "nobr0"},
		"agent not connected":    {"agent not connected taken as fatal (terraform-provider-libvirt 1050)", procAddresses, "DomainInterfaceAddresses", 86, "Guest agent is not responding: QEMU guest agent is not connected", fault.Unavailable, "AGENT"},
		"volume exists":          {"made meanwhile", procVolCreate, "StorageVolCreateXML", 90, "storage volume 'v' exists already", fault.Conflict, "exists"},
		"name with another UUID": {"already exists for ever (terraform-provider-libvirt 921, 1003)", procDefine, "DomainDefineXML", 9, "operation failed: domain 'one' already exists with uuid " + uuidText, fault.Conflict, "already exists"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := connect(t, rpc.Options{}, on(tc.proc, func(p *peer, in packet) {
				p.send(in.answers(reply, failed, remoteError(tc.code, tc.text)))
			}))
			_, err := everyCall[tc.call](t.Context(), c)
			if err == nil {
				t.Fatal("no error")
			}
			if got := fault.Of(err); got != tc.class {
				t.Errorf("%s: class %q, want %q", tc.reason, got, tc.class)
			}
			if !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 3000 {
				t.Errorf("%s: the error reads %.300q", tc.reason, err)
			}
			if c.Err() != nil {
				t.Errorf("a daemon's answer ended the connection: %v", c.Err())
			}
		})
	}
}

func TestUUIDsThatAreNone(t *testing.T) {
	c, _ := connect(t, rpc.Options{}, nil)
	for _, uuid := range []string{"", "x", uuidText + "0", strings.ReplaceAll(uuidText, "-", ""), "1111111g-2222-3333-4444-555555555555", "11111111-2222-3333-4444-5555555555--"} {
		if _, err := c.DomainLookupByUUID(t.Context(), uuid); fault.Of(err) != fault.Invalid {
			t.Errorf("%q: %v", uuid, err)
		}
		if err := c.DomainDestroy(t.Context(), virt.Domain{Name: "one", UUID: uuid}); fault.Of(err) != fault.Invalid {
			t.Errorf("%q: %v", uuid, err)
		}
		if _, err := c.StoragePoolGetInfo(t.Context(), virt.Pool{Name: "one", UUID: uuid}); fault.Of(err) != fault.Invalid {
			t.Errorf("%q: %v", uuid, err)
		}
	}
	if _, err := c.DomainLookupByUUID(t.Context(), strings.ToUpper("aaaaaaaa-2222-3333-4444-555555555555")); err != nil {
		t.Errorf("upper case: %v", err)
	}
}

// Each call ends with its context while the peer is mute, and the connection
// stays.
func TestContextEndsEachCall(t *testing.T) {
	for name, ask := range everyCall {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := make(chan struct{}, 8)
				opened := false
				c, _ := connect(t, rpc.Options{}, func(_ *peer, in packet) bool {
					if in.proc == procOpen {
						opened = true
						return false
					}
					if opened && in.kind == call {
						asked <- struct{}{}
					}
					return opened
				})
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				begun := time.Now()
				_, err := ask(ctx, c)
				if !errors.Is(err, context.DeadlineExceeded) || fault.Of(err) != fault.Timeout {
					t.Errorf("deadline: %v (%s)", err, fault.Of(err))
				}
				if took := time.Since(begun); took != 5*time.Second {
					t.Errorf("it took %v", took)
				}
				if len(asked) != 1 {
					t.Errorf("%d calls reached the peer", len(asked))
				}
				cancelled, stop := context.WithCancel(t.Context())
				stop()
				if _, err := ask(cancelled, c); !errors.Is(err, context.Canceled) {
					t.Errorf("cancelled: %v", err)
				}
				synctest.Wait()
				if len(asked) != 1 {
					t.Error("a call went out although its context had ended")
				}
				if c.Err() != nil {
					t.Errorf("the connection ended: %v", c.Err())
				}
				_ = c.Close()
			})
		})
	}
}

func TestLateAnswerIsDroppedAndTheSlotFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held []packet
		c, p := connect(t, rpc.Options{}, func(_ *peer, in packet) bool {
			if in.proc == procHostname {
				held = append(held, in)
				return true
			}
			return false
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 4 {
			go func() { _, _ = c.ConnectGetHostname(ctx) }()
		}
		synctest.Wait()
		if len(held) != 4 {
			t.Fatalf("%d calls in flight", len(held))
		}
		// The fifth waits for a slot, also when the four callers have left.
		time.Sleep(2 * time.Second)
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := c.ConnectGetLibVersion(short); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not asked") {
			t.Errorf("the fifth call: %v", err)
		}
		if n := len(p.procedures()); n != 6 { // auth list, open, four
			t.Errorf("%d calls reached the peer", n)
		}
		p.right(held[2])
		if v, err := c.ConnectGetLibVersion(t.Context()); err != nil || v != 9_000_000 {
			t.Errorf("after a late answer: %v, %v", v, err)
		}
		for _, in := range held {
			p.right(in) // the third one comes a second time
		}
		if v, err := c.ConnectGetLibVersion(t.Context()); err != nil || v != 9_000_000 {
			t.Errorf("after all: %v, %v", v, err)
		}
		_ = c.Close()
	})
}

func TestMutePeerEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mute atomic.Bool
		c, p := connect(t, rpc.Options{MuteAfter: 30 * time.Second}, func(_ *peer, _ packet) bool { return mute.Load() })
		time.Sleep(time.Hour)
		synctest.Wait()
		if c.Err() != nil {
			t.Fatalf("an idle connection ended: %v", c.Err())
		}
		mute.Store(true)
		begun := time.Now()
		go func() {
			// Any byte that arrives is life.
			time.Sleep(20 * time.Second)
			p.send(packet{0x20008086, 1, 318, message, 0, 0, xdr(1, 2)})
		}()
		_, err := c.ConnectGetHostname(t.Context())
		if fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), "mute") || !strings.Contains(err.Error(), "box-1") {
			t.Errorf("%v (%s)", err, fault.Of(err))
		}
		if took := time.Since(begun); took != 50*time.Second {
			t.Errorf("it took %v", took)
		}
		<-c.Done()
		if !errors.Is(err, c.Err()) {
			t.Errorf("Err is %v", c.Err())
		}
	})
}

// What we say is no sign of the peer's life.
func TestCallsOfOursAreNotLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := connect(t, rpc.Options{MuteAfter: 30 * time.Second}, on(procHostname, func(*peer, packet) {}))
		begun := time.Now()
		for range 3 {
			go func() { _, _ = c.ConnectGetHostname(t.Context()) }()
			time.Sleep(9 * time.Second)
		}
		<-c.Done()
		if took := time.Since(begun); took != 30*time.Second {
			t.Errorf("it took %v", took)
		}
		_ = c.Close()
	})
}

// What was idle is not mute: the wait begins with the call, and ends with its
// answer.
func TestSilenceIsCountedFromTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := connect(t, rpc.Options{MuteAfter: 30 * time.Second}, on(procHostname, func(p *peer, in packet) {
			go func() {
				time.Sleep(25 * time.Second)
				p.right(in)
			}()
		}))
		for range 3 {
			time.Sleep(time.Hour + 10*time.Second)
			if _, err := c.ConnectGetHostname(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := c.StorageVolUpload(t.Context(), someVolume, strings.NewReader("abc"), 0); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.Close()
	})
}

func TestPeerThatClosesTheStream(t *testing.T) {
	c, _ := connect(t, rpc.Options{}, on(procCreate, func(p *peer, _ packet) { _ = p.conn.Close() }))
	err := c.DomainCreate(t.Context(), someDomain)
	if fault.Of(err) != fault.Unavailable || !errors.Is(err, io.EOF) {
		t.Errorf("%v (%s)", err, fault.Of(err))
	}
	<-c.Done()
	for name, ask := range everyCall {
		if _, err := ask(t.Context(), c); fault.Of(err) != fault.Unavailable {
			t.Errorf("%s afterwards: %v (%s)", name, err, fault.Of(err))
		}
	}
}

func TestCloseFreesAllThatWait(t *testing.T) {
	for name, ask := range everyCall {
		t.Run(name, func(t *testing.T) {
			opened := false
			asked := make(chan struct{})
			c, _ := connect(t, rpc.Options{}, func(_ *peer, in packet) bool {
				if in.proc == procOpen {
					opened = true
					return false
				}
				if opened && in.kind == call {
					close(asked)
				}
				return opened
			})
			failed := make(chan error, 1)
			go func() {
				_, err := ask(t.Context(), c)
				failed <- err
			}()
			<-asked
			within(t, "Close", func() { _ = c.Close() })
			within(t, name, func() {
				if err := <-failed; fault.Of(err) != fault.Unavailable {
					t.Errorf("%v (%s)", err, fault.Of(err))
				}
			})
			if c.Err() == nil {
				t.Error("a closed connection has no reason")
			}
			_ = c.Close()
		})
	}
}

func TestHandshake(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		handle func(p *peer, in packet) bool
		class  fault.Class
		want   string
	}{
		"mute": {
			"no RPC of the library takes a context, and one on a dead link hangs",
			func(*peer, packet) bool { return true }, fault.Timeout, "did not answer virConnectOpen within",
		},
		"closed": {
			"nothing listens behind the socket",
			func(p *peer, _ packet) bool { _ = p.conn.Close(); return true }, fault.Unavailable, "ended",
		},
		"not libvirt": {
			"another daemon on that socket",
			func(p *peer, _ packet) bool {
				p.sendBytes([]byte("HTTP/1.1 400 Bad Request\r\n\r\n.........."))
				return true
			},
			fault.Unavailable, "does not keep to its protocol",
		},
		"sasl": {
			"the daemon wants a credential that we cannot give",
			func(p *peer, in packet) bool {
				switch in.proc {
				case procAuthList:
					p.send(in.answers(reply, ok, xdr(1, 1)))
				default:
					p.send(in.answers(reply, failed, remoteError(39, "authentication required")))
				}
				return true
			}, fault.Denied, "auth_unix_rw",
		},
		"polkit refuses": {
			"the user is not in the group",
			func(p *peer, in packet) bool {
				switch in.proc {
				case procAuthList:
					p.send(in.answers(reply, ok, xdr(1, 2)))
				case procAuthPolkit:
					p.send(in.answers(reply, failed, remoteError(94, "authentication unavailable: no polkit agent available")))
				}
				return true
			}, fault.Denied, "group libvirt",
		},
		"no qemu driver": {
			"the driver package is missing",
			on(procOpen, func(p *peer, in packet) {
				p.send(in.answers(reply, failed, remoteError(5, "no connection driver available for qemu:///system")))
			}), fault.Permanent, "QEMU driver",
		},
		"error without a reason": {
			"classed as the daemon's answers are",
			on(procOpen, func(p *peer, in packet) { p.send(in.answers(reply, failed, remoteError(38, "odd"))) }), fault.Transient, "odd",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, near := start(t, tc.handle)
			c, err := rpc.Open(t.Context(), near, rpc.Options{Host: "box-1", HandshakeTimeout: 200 * time.Millisecond})
			if err == nil {
				_ = c.Close()
				t.Fatal("no error")
			}
			if got := fault.Of(err); got != tc.class {
				t.Errorf("%s: class %q, want %q", tc.reason, got, tc.class)
			}
			if !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "box-1") {
				t.Errorf("%s: %v", tc.reason, err)
			}
			if _, err := near.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("the stream is still open: %v", err)
			}
		})
	}
}

func TestPolkitLetsIn(t *testing.T) {
	_, p := connect(t, rpc.Options{}, on(procAuthList, func(p *peer, in packet) { p.send(in.answers(reply, ok, xdr(1, 2))) }))
	if diff := cmp.Diff([]uint32{procAuthList, procAuthPolkit, procOpen}, p.procedures()); diff != "" {
		t.Error(diff)
	}
}

func TestContextEndsTheHandshake(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, near := start(t, func(*peer, packet) bool { cancel(); return true })
	_, err := rpc.Open(ctx, near, rpc.Options{Host: "box-1"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := near.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the stream is still open: %v", err)
	}
}

// The library sets a field when it has seen the last opening answer and reads
// it when the stream ends; the race detector saw both at once.
func TestStreamThatEndsRightAfterTheHandshake(t *testing.T) {
	for range 50 {
		_, near := start(t, on(procOpen, func(p *peer, in packet) { p.right(in); _ = p.conn.Close() }))
		c, err := rpc.Open(t.Context(), near, rpc.Options{Host: "box-1"})
		if err != nil {
			continue
		}
		within(t, "the end", func() { <-c.Done() })
		_ = c.Close()
	}
}

func TestManyCallersShareOneConnection(t *testing.T) {
	var now, most atomic.Int32
	c, p := connect(t, rpc.Options{}, func(p *peer, in packet) bool {
		if in.proc != procHostname {
			return false
		}
		most.Store(max(most.Load(), now.Add(1)))
		go func() {
			now.Add(-1)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.send(in.answers(reply, ok, xdr(fmt.Sprint("box-", in.serial))))
		}()
		return true
	})
	names := make(chan string, 200)
	for range 200 {
		go func() {
			name, err := c.ConnectGetHostname(t.Context())
			if err != nil {
				name = err.Error()
			}
			names <- name
		}()
	}
	got := make([]string, 0, 200)
	for range 200 {
		got = append(got, <-names)
	}
	slices.Sort(got)
	if n := len(slices.Compact(got)); n != 200 {
		t.Errorf("%d different answers for 200 calls: %q", n, got)
	}
	if most.Load() > 4 {
		t.Errorf("%d calls in flight at once", most.Load())
	}
	_ = p
}
