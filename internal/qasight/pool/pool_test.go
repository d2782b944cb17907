package pool_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/pool"
)

// wins is a pool in which every field has a value of its own.
func wins() pool.Pool {
	return pool.Pool{Name: "win-vms", Items: []string{"qa-2", "qa-1"}, TTL: 30 * time.Minute, Cooldown: 90 * time.Second, Check: true}
}

func TestRequestIsTheWholeWireForm(t *testing.T) {
	p := wins()
	r := p.Request()
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`{"items":["qa-2","qa-1"],"ttl":1800,"cooldown":90,"hooks":{"check":true}}`, string(raw)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	r.Items[0] = "changed"
	if p.Items[0] != "qa-2" {
		t.Error("who changes the request changes the pool")
	}
	reset := pool.Pool{Reset: true}.Request().Hooks
	if reset != (client.Hooks{Reset: true}) {
		t.Errorf("a pool with on_reset alone says %+v", reset)
	}
}

func TestHooks(t *testing.T) {
	for _, tc := range []struct{ check, reset bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		got := pool.Pool{Check: tc.check, Reset: tc.reset}.Hooks()
		if got != (lease.Hooks{Check: tc.check, Reset: tc.reset}) {
			t.Errorf("%+v became %+v", tc, got)
		}
	}
}

func TestDifferences(t *testing.T) {
	with := func(change func(*pool.Pool)) pool.Pool {
		p := wins()
		change(&p)
		return p
	}
	some := func(n int) []string {
		out := []string{"qa-1", "qa-2"}
		for i := range n {
			// The highest comes first: the order of the file is not that of names.
			out = append(out, fmt.Sprintf("new-%d", n-i))
		}
		return out
	}
	for name, tc := range map[string]struct {
		reason          string
		file, published pool.Pool
		want            []string
	}{
		"same":  {"nothing to say", wins(), wins(), nil},
		"order": {"keys are a set", wins(), with(func(p *pool.Pool) { p.Items = []string{"qa-1", "qa-2"} }), nil},
		"more":  {"a key that was added here", with(func(p *pool.Pool) { p.Items = some(1) }), wins(), []string{"new-1 is in the file and was not published"}},
		"less":  {"a key that was taken out here", wins(), with(func(p *pool.Pool) { p.Items = some(1) }), []string{"new-1 was published and is not in the file"}},
		"swapped": {
			"as many keys, and not the same", with(func(p *pool.Pool) { p.Items = []string{"qa-1", "qa-3"} }), wins(),
			[]string{"qa-3 is in the file and was not published", "qa-2 was published and is not in the file"},
		},
		"four": {
			"each has its line", with(func(p *pool.Pool) { p.Items = some(4) }), wins(),
			[]string{
				"new-1 is in the file and was not published", "new-2 is in the file and was not published", "new-3 is in the file and was not published",
				"new-4 is in the file and was not published",
			},
		},
		"five": {
			"the first three stand for the rest", wins(), with(func(p *pool.Pool) { p.Items = some(5) }),
			[]string{
				"new-1 was published and is not in the file", "new-2 was published and is not in the file", "new-3 was published and is not in the file",
				"2 more keys were published and are not in the file",
			},
		},
		"nothing published": {
			"an empty list has keys less", wins(), with(func(p *pool.Pool) { p.Items = nil }),
			[]string{"qa-1 is in the file and was not published", "qa-2 is in the file and was not published"},
		},
		"times": {
			"each says both", wins(), with(func(p *pool.Pool) { p.TTL, p.Cooldown = time.Hour, 0 }),
			[]string{"lease_ttl is 30m in the file and 1h as published", "cooldown is 1m30s in the file and 0s as published"},
		},
		"hooks": {
			"whether there is one counts", wins(), with(func(p *pool.Pool) { p.Check, p.Reset = false, true }),
			[]string{"on_check is in the file and was not published", "on_reset was published and is not in the file"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.file.Differences(tc.published)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// A pool that differs in any field that is published must be told from it: a field
// that Differences forgot would let a person's change be made on old data.
func TestDifferencesSeesEveryField(t *testing.T) {
	for i := range reflect.TypeFor[pool.Pool]().NumField() {
		field := reflect.TypeFor[pool.Pool]().Field(i).Name
		other := wins()
		switch v := reflect.ValueOf(&other).Elem().Field(i); {
		case field == "Name":
			continue // it is what the two are found by
		case v.Kind() == reflect.Bool:
			v.SetBool(!v.Bool())
		case v.Kind() == reflect.Int64:
			v.SetInt(v.Int() + int64(time.Second))
		case v.Kind() == reflect.Slice:
			v.Set(reflect.Append(v, reflect.ValueOf("another")))
		default:
			t.Fatalf("teach this test about %s", field)
		}
		if len(wins().Differences(other)) != 1 || len(other.Differences(wins())) != 1 {
			t.Errorf("a pool that differs in %s passes for the same", field)
		}
		if cmp.Equal(wins().Request(), other.Request()) {
			t.Errorf("%s does not reach the request", field)
		}
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 10 * time.Second: "10s", time.Minute: "1m", 10 * time.Minute: "10m", 90 * time.Second: "1m30s",
		time.Hour: "1h", 24 * time.Hour: "24h", time.Hour + time.Minute: "1h1m", time.Hour + time.Second: "1h0m1s", 1500 * time.Millisecond: "1.5s",
		10*time.Hour + 10*time.Minute: "10h10m",
	} {
		if got := pool.Short(d); got != want {
			t.Errorf("%s reads %s, want %s", d, got, want)
		}
	}
}

// What the owner runs never leaves the machine, because there is nothing to put it
// in: neither here nor in what is sent.
func TestNothingOfTheOwnersCommandsHasAPlace(t *testing.T) {
	smell := regexp.MustCompile(`(?i)provider|command|script|exec|shell|list|create|destroy|delete|prefix|allow|verb|timeout`)
	seen := map[reflect.Type]bool{}
	var walk func(path string, of reflect.Type)
	walk = func(path string, of reflect.Type) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			walk(path, of.Elem())
			return
		case reflect.Map:
			walk(path, of.Key())
			walk(path, of.Elem())
			return
		case reflect.Interface, reflect.Func, reflect.Chan, reflect.UnsafePointer:
			t.Errorf("%s is a %s, which may hold anything", path, of.Kind())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[of] {
			return
		}
		seen[of] = true
		for i := range of.NumField() {
			f := of.Field(i)
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			for _, name := range []string{f.Name, tag} {
				if m := smell.FindString(name); m != "" {
					t.Errorf("%s.%s smells of %q", path, f.Name, m)
				}
			}
			// Hooks are whether there are any. Their text would be one.
			if strings.Contains(path+"."+f.Name, "Hooks.") && f.Type.Kind() != reflect.Bool {
				t.Errorf("%s.%s is a %s", path, f.Name, f.Type)
			}
			walk(path+"."+f.Name, f.Type)
		}
	}
	walk("Pool", reflect.TypeFor[pool.Pool]())
	walk("PublishRequest", reflect.TypeFor[client.PublishRequest]())
	for _, of := range []reflect.Type{reflect.TypeFor[client.PoolSettings](), reflect.TypeFor[client.Hooks]()} {
		if !seen[of] {
			t.Errorf("%s was not looked at", of)
		}
	}
	if !smell.MatchString("ProviderList") || !smell.MatchString("name_prefix") {
		t.Error("the nose is broken")
	}
}
