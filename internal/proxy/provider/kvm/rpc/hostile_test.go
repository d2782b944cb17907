package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/rpc"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// raw is a frame whose length word may lie.
func raw(length uint32, p packet) []byte {
	b := p.bytes()
	binary.BigEndian.PutUint32(b, length)
	return b
}

// The ways in which a peer can crash, hang or drain the library, by name. Each
// either ends the connection with a reason or does no harm at all.
func TestHostilePeer(t *testing.T) {
	huge := 0x7fffffff
	for name, tc := range map[string]struct {
		reason string
		call   string
		proc   uint32
		say    func(p *peer, in packet)
		// ends: the reason that the connection ends for; empty when it lives.
		ends string
		// err: a part of the call's error when the connection lives.
		err string
	}{
		"a length of 4": {
			"the library panics in a goroutine of its own", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.sendBytes(raw(4, in.answers(reply, ok, nil))) }, "a frame of 4 bytes", "",
		},
		"a length of 27": {
			"the same, by one", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.sendBytes(raw(27, in.answers(reply, ok, nil))) }, "a frame of 27 bytes", "",
		},
		"a length of 0": {
			"the same", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.sendBytes(raw(0, in.answers(reply, ok, nil))) }, "a frame of 0 bytes", "",
		},
		"a length of 4 GiB": {
			"the library allocates it", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.sendBytes(raw(0xfffffff0, in.answers(reply, ok, nil))) }, "a frame of 4294967280 bytes", "",
		},
		"a length just above the limit": {
			"8 MiB is the most that any answer has", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.sendBytes(raw(8<<20+29, in.answers(reply, ok, nil))) }, "a frame of 8388637 bytes", "",
		},
		"a long answer to a short question": {
			"a host name has no megabytes", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.sendBytes(raw(1<<20, in.answers(reply, ok, nil))) }, "an answer of 1048548 bytes", "",
		},
		"an array of 2 billion": {
			"a 4-byte array count asks for 80 GiB", "StoragePoolListAllVolumes", procListVolumes,
			func(p *peer, in packet) { p.send(in.answers(reply, ok, xdr(huge))) }, "an array of 2147483647", "",
		},
		"an array whose size overflows": {
			"the product must not wrap around", "StoragePoolListAllVolumes", procListVolumes,
			func(p *peer, in packet) { p.send(in.answers(reply, ok, xdr(0x55555556, 0, 0, 0, 0))) }, "an array of", "",
		},
		"an array of 100,000 empty things": {
			"in memory they are many times what they are on the wire", "StoragePoolListAllVolumes", procListVolumes,
			func(p *peer, in packet) {
				p.send(in.answers(reply, ok, append(append(xdr(100_000), make([]byte, 1_200_000)...), xdr(100_000)...)))
			}, "an array of 100000", "",
		},
		"a string of 2 GiB": {
			"allocated before it is read", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.send(in.answers(reply, ok, xdr(huge, "x"))) }, "a string of 2147483647", "",
		},
		"a string of 4 GiB": {
			"its padding overflows", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.send(in.answers(reply, ok, xdr(0xffffffff, "x"))) }, "a string of 4294967295", "",
		},
		"a string without its padding": {
			"whole words only", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.send(in.answers(reply, ok, []byte{0, 0, 0, 1, 'x'})) }, "a string of 1 bytes", "",
		},
		"a parameter's string of 2 GiB": {
			"unions are read too", "ConnectGetAllDomainStats", procAllStats,
			func(p *peer, in packet) {
				p.send(in.answers(reply, ok, xdr(1, "one", uuidBytes, 7, 1, "a", 7, huge)))
			}, "a string of", "",
		},
		"a parameter of no type": {
			"unions are read too", "ConnectGetAllDomainStats", procAllStats,
			func(p *peer, in packet) {
				p.send(in.answers(reply, ok, xdr(1, "one", uuidBytes, 7, 1, "a", 8, 0)))
			}, "unknown type 8", "",
		},
		"an optional value 3 times": {
			"it is there or it is not", "DomainInterfaceAddresses", procAddresses,
			func(p *peer, in packet) { p.send(in.answers(reply, ok, xdr(1, "eth0", 3, "a", "b", "c", 0))) }, "3 times", "",
		},
		"a number that does not fit": {
			"the state is a byte", "StoragePoolGetInfo", procPoolInfo,
			func(p *peer, in packet) {
				p.send(in.answers(reply, ok, xdr(256, uint64(1), uint64(1), uint64(1))))
			}, "the number 256", "",
		},
		"a signed number that does not fit": {
			"the type is a byte", "StorageVolGetInfo", procVolInfo,
			func(p *peer, in packet) { p.send(in.answers(reply, ok, xdr(128, uint64(1), uint64(1)))) }, "the number 128", "",
		},
		"an answer too short": {
			"", "ConnectGetLibVersion", procLibVersion,
			func(p *peer, in packet) { p.send(in.answers(reply, ok, xdr(1))) }, "ends too early", "",
		},
		"an answer too long": {
			"an answer is all of its frame", "ConnectGetLibVersion", procLibVersion,
			func(p *peer, in packet) { p.send(in.answers(reply, ok, xdr(uint64(1), 2))) }, "4 bytes are left over", "",
		},
		"an answer where none is due": {
			"", "DomainCreate", procCreate,
			func(p *peer, in packet) { p.send(in.answers(reply, ok, xdr(1))) }, "an answer of 4 bytes", "",
		},
		"an error with the code for success": {
			"the library takes its text for the result", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.send(in.answers(reply, failed, remoteError(0, "no error"))) }, "the code for success", "",
		},
		"an error with a text of 2 GiB": {
			"allocated before it is read", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.send(in.answers(reply, failed, xdr(1, 1, 1, huge))) }, "an error that cannot be read", "",
		},
		"an error without a text": {
			"the library reads the level as the text's length", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) {
				p.send(in.answers(reply, failed, xdr(38, 10, 0, huge, 0, 0, 0, 0, 0, 0, 0)))
			}, "", "gave no reason",
		},
		"an empty error": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.send(in.answers(reply, failed, nil)) }, "an error that cannot be read", "",
		},
		"an error of a megabyte": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) {
				p.send(in.answers(reply, failed, remoteError(38, strings.Repeat("x", 1<<19))))
			}, "an answer of", "",
		},
		"another program": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { in.prog++; p.send(in.answers(reply, ok, xdr("x"))) }, "program 0x20008087", "",
		},
		"another version": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { in.ver = 2; p.send(in.answers(reply, ok, xdr("x"))) }, "version 2", "",
		},
		"another procedure": {
			"its answer would be decoded as this one's", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { in.proc = procLibVersion; p.send(in.answers(reply, ok, xdr(uint64(1)))) }, "procedure 157 to a call of 59", "",
		},
		"the procedure of an event": {
			"the library takes it for an event, whatever its type says", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { in.proc = 318; p.send(in.answers(reply, ok, xdr(1))) }, "procedure 318", "",
		},
		"an unknown status": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.send(in.answers(reply, 3, xdr("x"))) }, "status 3", "",
		},
		"an answer to be continued": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.send(in.answers(reply, more, xdr("x"))) }, "to be continued", "",
		},
		"an answer with files": {
			"types that we never asked for", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.send(in.answers(5, ok, xdr("x"))) }, "type 5", "",
		},
		"a call from the peer": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.send(in.answers(call, ok, xdr("x"))) }, "type 0", "",
		},
		"a stream where an answer is due": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.send(in.answers(stream, ok, xdr("x"))) }, "type 3", "",
		},
		"the end of an upload that goes on": {
			"the library would report success", "StorageVolUpload", procUpload,
			func(p *peer, in packet) {
				switch {
				case in.kind == call:
					p.right(in)
				case in.status == more:
					p.send(in.answers(stream, ok, nil))
				}
			}, "still goes on", "",
		},
		"the end of an upload with bytes": {
			"", "StorageVolUpload", procUpload,
			func(p *peer, in packet) {
				if in.kind == stream && in.status == ok {
					p.send(in.answers(stream, ok, xdr("x")))
					return
				}
				p.right(in)
			}, "an answer of 8 bytes", "",
		},
		"an answer twice": {
			"the library stops for ever with its lock held", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.right(in); p.right(in); p.right(in) }, "", "",
		},
		"an error twice": {
			"the same", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) {
				for range 3 {
					p.send(in.answers(reply, failed, remoteError(38, "once")))
				}
			}, "", "once",
		},
		"an upload's answer twice": {
			"", "StorageVolUpload", procUpload,
			func(p *peer, in packet) {
				p.right(in)
				if in.kind == call {
					p.right(in)
				}
			}, "", "",
		},
		"an upload's end twice": {
			"a real daemon does so after an error", "StorageVolUpload", procUpload,
			func(p *peer, in packet) {
				if in.kind == stream && in.status == ok {
					p.send(in.answers(stream, failed, remoteError(38, "cannot write to stream")))
					p.right(in)
					return
				}
				p.right(in)
			}, "", "cannot write to stream",
		},
		"bytes down an upload": {
			"nobody reads them", "StorageVolUpload", procUpload,
			func(p *peer, in packet) {
				if in.kind == stream {
					p.send(in.answers(stream, more, make([]byte, 1000)))
					p.send(in.answers(stream, more, nil)) // the library takes it for the end
				}
				p.right(in)
			}, "", "",
		},
		"answers to nothing": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) {
				right := in
				for range 50 {
					in.serial += 1000
					p.send(in.answers(reply, ok, xdr("x")))
				}
				p.right(right)
			}, "", "",
		},
		"events": {
			"the library keeps them without bound", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) {
				for range 50 {
					p.send(packet{in.prog, in.ver, 318, message, 0, ok, make([]byte, 100_000)})
				}
				p.right(in)
			}, "", "",
		},
		"an event under the call's own serial": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.send(in.answers(message, ok, xdr("x"))); p.right(in) }, "", "",
		},
		"events without end": {
			"a flood keeps no call waiting for ever", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) {
				for range 1100 {
					p.send(packet{in.prog, in.ver, 318, message, 0, ok, nil})
				}
			}, "more than 1000 frames", "",
		},
		"an event of 4 MiB": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) { p.sendBytes(raw(4<<20, packet{in.prog, in.ver, 318, message, 0, ok, nil})) }, "that answers nothing", "",
		},
		"garbage": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, _ packet) { p.sendBytes(bytes.Repeat([]byte("garbage "), 8)) }, "a frame of", "",
		},
		"the stream's end in mid-frame": {
			"", "ConnectGetHostname", procHostname,
			func(p *peer, in packet) {
				b := in.answers(reply, ok, xdr("box-1")).bytes()
				p.sendBytes(b[:len(b)-2])
				_ = p.conn.Close()
			}, "unexpected EOF", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := connect(t, rpc.Options{}, on(tc.proc, tc.say))
			before := memory()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := everyCall[tc.call](ctx, c)
			if ctx.Err() != nil {
				t.Fatalf("%s: the call hung", tc.reason)
			}
			if grown := memory() - before; grown > 64<<20 {
				t.Errorf("%s: %d MiB more", tc.reason, grown>>20)
			}
			if tc.ends != "" {
				if err == nil || fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), tc.ends) || !strings.Contains(err.Error(), "box-1") {
					t.Errorf("%s: %v (%s)", tc.reason, err, fault.Of(err))
				}
				within(t, "the connection's end", func() { <-c.Done() })
				return
			}
			if (err == nil) != (tc.err == "") || (err != nil && !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("%s: %v", tc.reason, err)
			}
			if v, err := c.ConnectGetLibVersion(ctx); err != nil || v != 9_000_000 {
				t.Errorf("%s: the next call: %v, %v", tc.reason, v, err)
			}
		})
	}
}

// A daemon that says much besides, but answers, is no flood.
func TestEventsBetweenAnswers(t *testing.T) {
	c, _ := connect(t, rpc.Options{}, on(procHostname, func(p *peer, in packet) {
		for range 600 {
			p.send(packet{in.prog, in.ver, 318, message, 0, ok, nil})
		}
		p.right(in)
	}))
	for range 3 {
		if _, err := c.ConnectGetHostname(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// memory is what the process has from the system.
func memory() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys)
}

// Whatever a peer answers, and however it frames it: no panic, each call ends,
// memory stays bounded.
func FuzzHostilePeer(f *testing.F) {
	for proc, answer := range right {
		f.Add(proc, uint8(reply), uint8(ok), answer, []byte(nil))
	}
	f.Add(uint32(procHostname), uint8(reply), uint8(failed), remoteError(38, "odd"), []byte(nil))
	f.Add(uint32(procHostname), uint8(reply), uint8(failed), remoteError(0, "fine"), []byte(nil))
	f.Add(uint32(procUpload), uint8(stream), uint8(failed), remoteError(38, "full"), []byte(nil))
	f.Add(uint32(procUpload), uint8(stream), uint8(more), []byte("x"), []byte(nil))
	f.Add(uint32(procListVolumes), uint8(reply), uint8(ok), xdr(0x7fffffff), []byte(nil))
	f.Add(uint32(procAllStats), uint8(reply), uint8(ok), xdr(1, "a", uuidBytes, 1, 0x0fffffff), []byte(nil))
	f.Add(uint32(procHostname), uint8(message), uint8(ok), xdr(1), raw(4, packet{}))
	f.Add(uint32(procHostname), uint8(reply), uint8(ok), xdr(0xffffffff), raw(0xfffffff0, packet{0x20008086, 1, 59, reply, 4, 0, nil}))
	f.Fuzz(func(t *testing.T, proc uint32, kind, status uint8, payload, before []byte) {
		name := ""
		for n, p := range callOf {
			if p == proc {
				name = n
			}
		}
		if name == "" {
			return
		}
		far, near := net.Pipe()
		p := &peer{conn: far, handle: on(proc, func(p *peer, in packet) {
			p.sendBytes(before)
			if kind == stream && in.kind == call {
				p.right(in)
			}
			p.send(in.answers(uint32(kind), uint32(status), payload))
			// What comes after the answer ends the call, were it not one.
			p.right(in)
			_ = p.conn.Close()
		})}
		go p.serve()
		start := memory()
		within(t, "the call", func() {
			c, err := rpc.Open(t.Context(), near, rpc.Options{Host: "box-1"})
			if err != nil {
				_ = near.Close()
				return
			}
			_, err = everyCall[name](t.Context(), c)
			if err != nil && !fault.Classed(err) {
				t.Errorf("an error without a class: %v", err)
			}
			_ = c.Close()
		})
		_ = far.Close()
		if grown := memory() - start; grown > 64<<20 {
			t.Errorf("%d MiB more", grown>>20)
		}
	})
}

var callOf = map[string]uint32{
	"ConnectGetLibVersion": procLibVersion, "ConnectGetHostname": procHostname, "ConnectGetCapabilities": procCaps,
	"ConnectGetDomainCapabilities": procDomainCaps, "ConnectGetAllDomainStats": procAllStats,
	"ConnectDomainEventRegisterAny": procRegister,
	"DomainLookupByName":            procByName, "DomainLookupByUUID": procByUUID, "DomainGetState": procGetState,
	"DomainGetMetadata": procGetMetadata, "DomainSetMetadata": procSetMetadata, "DomainDefineXML": procDefine,
	"DomainCreate": procCreate, "DomainDestroy": procDestroy, "DomainUndefineFlags": procUndefine,
	"DomainInterfaceAddresses": procAddresses, "NetworkLookupByName": procNetByName,
	"StoragePoolLookupByName": procPoolByName, "StoragePoolGetInfo": procPoolInfo, "StoragePoolGetXMLDesc": procPoolXML,
	"StoragePoolListAllVolumes": procListVolumes, "StorageVolLookupByName": procVolByName, "StorageVolGetInfo": procVolInfo,
	"StorageVolGetPath": procVolPath, "StorageVolCreateXML": procVolCreate, "StorageVolDelete": procVolDelete,
	"StorageVolUpload": procUpload,
}

var _ virt.Conn = (*rpc.Conn)(nil)
