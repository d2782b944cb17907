package virt_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

const uploadBody = "#cloud-config the body of an upload"

// arguments are those of each method, by type.
func arguments(m reflect.Method) []reflect.Value {
	in := make([]reflect.Value, 0, m.Type.NumIn())
	for i := range m.Type.NumIn() {
		var v any
		switch m.Type.In(i) {
		case reflect.TypeFor[context.Context]():
			v = context.Background()
		case reflect.TypeFor[string]():
			v = map[string]string{
				"DomainDefineXML": sampleXML, "StorageVolCreateXML": sampleXML, "DomainSetMetadata": sampleXML,
				"DomainLookupByUUID": sampleUUID,
			}[m.Name]
			if v == "" {
				v = "given"
			}
		case reflect.TypeFor[virt.Domain]():
			v = virt.Domain{Name: "one", UUID: sampleUUID, ID: 7}
		case reflect.TypeFor[virt.Pool]():
			v = virt.Pool{Name: "default", UUID: sampleUUID}
		case reflect.TypeFor[virt.Volume]():
			v = virt.Volume{Pool: "default", Name: "a", Key: "/p/a"}
		case reflect.TypeFor[io.Reader]():
			v = strings.NewReader(uploadBody)
		default:
			in = append(in, reflect.Zero(m.Type.In(i)))
			continue
		}
		in = append(in, reflect.ValueOf(v))
	}
	return in
}

// each calls every method of virt.Conn on c.
func each(c virt.Conn, do func(m reflect.Method, results []reflect.Value)) {
	conn := reflect.TypeFor[virt.Conn]()
	for i := range conn.NumMethod() {
		m := conn.Method(i)
		do(m, reflect.ValueOf(c).MethodByName(m.Name).Call(arguments(m)))
	}
}

func logger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

func lines(t *testing.T, b *bytes.Buffer) []map[string]any {
	t.Helper()
	var all []map[string]any
	for l := range strings.Lines(b.String()) {
		m := map[string]any{}
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// Each method is traced under its name in the public API, passes on what it
// was given and what it got, and says neither more nor less than it should.
func TestTracedHasEveryMethod(t *testing.T) {
	var b bytes.Buffer
	s := &stub{}
	plain := &stub{}
	each(virt.Traced(s, "box-1", logger(&b, slog.LevelDebug)), func(m reflect.Method, got []reflect.Value) {
		if s.calls[len(s.calls)-1] != m.Name || len(s.calls) != len(slices.Compact(s.calls)) {
			t.Errorf("%s reached %s", m.Name, s.calls[len(s.calls)-1])
		}
		want := reflect.ValueOf(plain).MethodByName(m.Name).Call(arguments(m))
		for i := range want {
			if diff := cmp.Diff(want[i].Interface(), got[i].Interface()); diff != "" {
				t.Errorf("%s: result %d: %s", m.Name, i, diff)
			}
		}
		all := lines(t, &b)
		last := all[len(all)-1]
		if len(all) != len(s.calls) || last["rpc"] != "vir"+m.Name || last["host"] != "box-1" || last["duration"] == nil {
			t.Errorf("%s: %d lines for %d calls; the last is %v", m.Name, len(all), len(s.calls), last)
		}
		for i := range m.Type.NumIn() {
			switch m.Type.In(i) {
			case reflect.TypeFor[virt.Domain]():
				if last["name"] != "one" || last["uuid"] != sampleUUID {
					t.Errorf("%s does not say which domain: %v", m.Name, last)
				}
			case reflect.TypeFor[virt.Pool]():
				if last["pool"] != "default" {
					t.Errorf("%s does not say which pool: %v", m.Name, last)
				}
			case reflect.TypeFor[virt.Volume]():
				if last["pool"] != "default" || last["volume"] != "a" {
					t.Errorf("%s does not say which volume: %v", m.Name, last)
				}
			}
		}
	})
	for _, hidden := range []string{"cloud-config", "192.0.2.7", `"xml"`, `"metadata"`, `"addresses"`} {
		if strings.Contains(b.String(), hidden) {
			t.Errorf("the trace says %s", hidden)
		}
	}
}

func TestTracedLines(t *testing.T) {
	const detail = slog.LevelDebug - 4
	for name, tc := range map[string]struct {
		reason string
		level  slog.Level
		err    error
		ask    func(c virt.Conn)
		want   map[string]any
	}{
		"look-up": {
			"identifier given and found", slog.LevelDebug, nil,
			func(c virt.Conn) { _, _ = c.DomainLookupByName(t.Context(), "one") },
			map[string]any{"rpc": "virDomainLookupByName", "host": "box-1", "name": "one", "uuid": sampleUUID, "id": 7.0},
		},
		"failure": {
			"the code by name and number, no results", slog.LevelDebug, virt.Fault(virt.CodeNoDomain, "Domain not found"),
			func(c virt.Conn) { _, _ = c.DomainLookupByName(t.Context(), "one") },
			map[string]any{
				"rpc": "virDomainLookupByName", "host": "box-1", "name": "one", "error": "Domain not found (VIR_ERR_NO_DOMAIN)",
				"libvirtError": "VIR_ERR_NO_DOMAIN", "libvirtCode": 42.0,
			},
		},
		"failure of the link": {
			"not the daemon's answer: no code", slog.LevelDebug, fault.New(fault.Unavailable, "the link ended"),
			func(c virt.Conn) { _ = c.DomainCreate(t.Context(), virt.Domain{Name: "one", UUID: sampleUUID}) },
			map[string]any{"rpc": "virDomainCreate", "host": "box-1", "name": "one", "uuid": sampleUUID, "error": "the link ended"},
		},
		"state": {
			"numbers as libvirt has them", slog.LevelDebug, nil,
			func(c virt.Conn) { _, _, _ = c.DomainGetState(t.Context(), virt.Domain{Name: "one", UUID: sampleUUID}) },
			map[string]any{"rpc": "virDomainGetState", "host": "box-1", "name": "one", "uuid": sampleUUID, "state": 3.0, "reason": 5.0},
		},
		"upload": {
			"how many bytes, never which", detail, nil,
			func(c virt.Conn) {
				_ = c.StorageVolUpload(t.Context(), virt.Volume{Pool: "default", Name: "seed"}, strings.NewReader(uploadBody), 0)
			},
			map[string]any{"rpc": "virStorageVolUpload", "host": "box-1", "pool": "default", "volume": "seed", "bytes": float64(len(uploadBody))},
		},
		"a failed upload": {
			"how far it came", detail, errors.New("full"),
			func(c virt.Conn) {
				_ = c.StorageVolUpload(t.Context(), virt.Volume{Pool: "default", Name: "seed"}, strings.NewReader(uploadBody), 0)
			},
			map[string]any{
				"rpc": "virStorageVolUpload", "host": "box-1", "pool": "default", "volume": "seed",
				"bytes": float64(len(uploadBody)), "error": "full",
			},
		},
		"detail of what was given": {
			"XML at the lower level", detail, nil,
			func(c virt.Conn) { _, _ = c.DomainDefineXML(t.Context(), sampleXML) },
			map[string]any{"rpc": "virDomainDefineXML", "host": "box-1", "xml": sampleXML, "name": "one", "uuid": sampleUUID},
		},
		"detail of what came": {
			"metadata at the lower level", detail, nil,
			func(c virt.Conn) { _, _ = c.DomainGetMetadata(t.Context(), virt.Domain{Name: "one", UUID: sampleUUID}) },
			map[string]any{
				"rpc": "virDomainGetMetadata", "host": "box-1", "name": "one", "uuid": sampleUUID,
				"metadata": sampleXML, "bytes": float64(len(sampleXML)),
			},
		},
		"addresses": {
			"at the lower level", detail, nil,
			func(c virt.Conn) {
				_, _ = c.DomainInterfaceAddresses(t.Context(), virt.Domain{Name: "one", UUID: sampleUUID}, virt.FromARP)
			},
			map[string]any{
				"rpc": "virDomainInterfaceAddresses", "host": "box-1", "name": "one", "uuid": sampleUUID, "source": "arp", "count": 1.0,
				"addresses": []any{map[string]any{"Name": "eth0", "MAC": "", "Addresses": []any{map[string]any{"IP": "192.0.2.7", "Prefix": 0.0}}}},
			},
		},
		"quiet": {
			"nothing above the level", slog.LevelInfo, errors.New("x"),
			func(c virt.Conn) { _, _ = c.DomainLookupByName(t.Context(), "one") },
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			tc.ask(virt.Traced(&stub{err: tc.err}, "box-1", logger(&b, tc.level)))
			var got map[string]any
			if all := lines(t, &b); len(all) > 0 {
				got = all[0]
				if got["msg"] != "libvirt call" || got["level"] != "DEBUG" || got["duration"] == nil {
					t.Errorf("%v", got)
				}
				for _, k := range []string{"msg", "level", "time", "duration"} {
					delete(got, k)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: %s", tc.reason, diff)
			}
		})
	}
}

func TestTracedBoundsWhatItSays(t *testing.T) {
	var b bytes.Buffer
	c := virt.Traced(&stub{}, "box-1", logger(&b, slog.LevelDebug-4))
	_, _ = c.DomainDefineXML(t.Context(), strings.Repeat("x", 1<<20))
	if b.Len() > 20<<10 {
		t.Errorf("a line of %d bytes", b.Len())
	}
}

func TestCountedHasEveryMethod(t *testing.T) {
	var noted []string
	s, plain := &stub{}, &stub{}
	each(virt.Counted(s, func(rpc string) error { noted = append(noted, rpc); return nil }), func(m reflect.Method, got []reflect.Value) {
		if noted[len(noted)-1] != "vir"+m.Name || len(noted) != len(s.calls) || s.calls[len(s.calls)-1] != m.Name {
			t.Errorf("%s: noted %v, called %v", m.Name, noted, s.calls)
		}
		want := reflect.ValueOf(plain).MethodByName(m.Name).Call(arguments(m))
		for i := range want {
			if diff := cmp.Diff(want[i].Interface(), got[i].Interface()); diff != "" {
				t.Errorf("%s: result %d: %s", m.Name, i, diff)
			}
		}
	})
}

func TestCountedErrorTakesTheCallsPlace(t *testing.T) {
	failure := errors.New("the k-th call")
	s := &stub{}
	each(virt.Counted(s, func(string) error { return failure }), func(m reflect.Method, got []reflect.Value) {
		if err := got[len(got)-1].Interface(); err != failure {
			t.Errorf("%s: %v", m.Name, err)
		}
		for _, v := range got[:len(got)-1] {
			if !v.IsZero() {
				t.Errorf("%s returned %v besides", m.Name, v)
			}
		}
	})
	if len(s.calls) > 0 {
		t.Errorf("asked all the same: %v", s.calls)
	}
}
