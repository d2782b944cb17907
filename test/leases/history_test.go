package leases_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// entry is one line of a client's history. A client writes it with one write to
// a file of its own, so a kill cuts off at most the last line. Times are
// nanoseconds of CLOCK_BOOTTIME, which all processes of a machine share.
type entry struct {
	At int64 `json:"at"`
	// Event is granted, renewed, releasing, released, lost, none or error.
	Event string `json:"event"`
	Key   string `json:"key,omitempty"`
	Fence int64  `json:"fence,omitempty"`
	// Asked is when the take that was granted was sent first.
	Asked int64 `json:"asked,omitempty"`
	// Until is when the lease ends by the client's own count.
	Until int64  `json:"until,omitempty"`
	Text  string `json:"text,omitempty"`
}

func bootTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// readHistory reads one client's file; a last line that was cut off is dropped.
func readHistory(r io.Reader) ([]entry, error) {
	var all []entry
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(all)+1, err)
		}
		all = append(all, e)
	}
}

// holding is the time in which a client could be sure to hold a key.
type holding struct {
	client     string
	key        string
	fence      int64
	asked      int64
	from, till int64
}

// check reads the histories of all clients and returns what must not be. It
// knows nothing of how leases are kept.
//
//   - two clients sure to hold one key at one time;
//   - a fence given out twice, or a later lease of a key with a lesser one;
//   - a lease that its holder lost before the time it had been promised.
func check(histories map[string][]entry) (held []holding, faults []string) {
	for client, entries := range histories {
		var open *holding
		for _, e := range entries {
			switch e.Event {
			case "granted":
				if open != nil {
					held = append(held, *open)
				}
				open = &holding{client, e.Key, e.Fence, e.Asked, e.At, e.Until}
			case "renewed":
				if open != nil && open.fence == e.Fence {
					open.till = e.Until
				}
			case "releasing":
				// From here on the client does not touch the key.
				if open != nil && open.fence == e.Fence {
					open.till = min(open.till, e.At)
					held, open = append(held, *open), nil
				}
			case "lost":
				if open != nil && open.fence == e.Fence && e.At < open.till {
					faults = append(faults, fmt.Sprintf("%s lost lease %s~%d %s before its time: %s",
						client, e.Key, e.Fence, time.Duration(open.till-e.At), e.Text))
				}
				if open != nil {
					open.till = min(open.till, e.At)
					held, open = append(held, *open), nil
				}
			}
		}
		if open != nil { // killed with the key in hand: nobody else may have it before its time
			held = append(held, *open)
		}
	}
	fences := map[int64]holding{}
	byKey := map[string][]holding{}
	for _, h := range held {
		if other, ok := fences[h.fence]; ok {
			faults = append(faults, fmt.Sprintf("fence %d was given to %s (%s) and %s (%s)", h.fence, other.client, other.key, h.client, h.key))
		}
		fences[h.fence] = h
		byKey[h.key] = append(byKey[h.key], h)
	}
	for key, all := range byKey {
		slices.SortFunc(all, func(a, b holding) int { return cmp.Compare(a.fence, b.fence) })
		for i := 1; i < len(all); i++ {
			a, b := all[i-1], all[i]
			if b.from < a.till && a.from < b.till {
				faults = append(faults, fmt.Sprintf("%s was held by %s (fence %d until %d) and %s (fence %d from %d) at one time",
					key, a.client, a.fence, a.till, b.client, b.fence, b.from))
			}
			if b.from < a.asked {
				faults = append(faults, fmt.Sprintf("%s: fence %d was asked for after fence %d was given out", key, a.fence, b.fence))
			}
		}
	}
	slices.Sort(faults)
	return held, faults
}

// The checker finds what it looks for, and nothing in a history that is right.
func TestChecker(t *testing.T) {
	grant := func(key string, fence, asked, at, until int64) entry {
		return entry{At: at, Event: "granted", Key: key, Fence: fence, Asked: asked, Until: until}
	}
	for name, tc := range map[string]struct {
		reason string
		a, b   []entry
		want   string // "" for no fault
	}{
		"in turn": {
			"the second has it after the first's release",
			[]entry{grant("k", 1, 0, 10, 100), {At: 50, Event: "releasing", Key: "k", Fence: 1}},
			[]entry{grant("k", 2, 20, 60, 160)},
			"",
		},
		"killed": {
			"after the time of one that was killed anybody may have it",
			[]entry{grant("k", 1, 0, 10, 100)},
			[]entry{grant("k", 2, 20, 101, 200)},
			"",
		},
		"too early after a kill": {
			"who was killed holds the key until its time",
			[]entry{grant("k", 1, 0, 10, 100)},
			[]entry{grant("k", 2, 20, 99, 200)},
			"at one time",
		},
		"overlap after a renewal": {
			"a renewal extends the time",
			[]entry{grant("k", 1, 0, 10, 100), {At: 90, Event: "renewed", Key: "k", Fence: 1, Until: 190}},
			[]entry{grant("k", 2, 20, 150, 250)},
			"at one time",
		},
		"other keys": {
			"two keys are two things",
			[]entry{grant("k", 1, 0, 10, 100)},
			[]entry{grant("l", 2, 0, 10, 100)},
			"",
		},
		"fence twice": {
			"a fence names one lease",
			[]entry{grant("k", 1, 0, 10, 100)},
			[]entry{grant("l", 1, 0, 10, 100)},
			"was given to",
		},
		"fence falls": {
			"a later lease has a greater fence",
			[]entry{grant("k", 5, 0, 10, 20)},
			[]entry{grant("k", 4, 30, 40, 50)},
			"was asked for after",
		},
		"lost early": {
			"a lease lives as long as it was promised",
			[]entry{grant("k", 1, 0, 10, 100), {At: 60, Event: "lost", Key: "k", Fence: 1, Text: "x"}},
			nil, "before its time",
		},
		"lost late": {
			"after its time it may be lost",
			[]entry{grant("k", 1, 0, 10, 100), {At: 101, Event: "lost", Key: "k", Fence: 1}},
			nil, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, faults := check(map[string][]entry{"a": tc.a, "b": tc.b})
			switch got := strings.Join(faults, "\n"); {
			case tc.want == "" && got != "":
				t.Errorf("%s: %s", tc.reason, got)
			case !strings.Contains(got, tc.want):
				t.Errorf("%s: found %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestHistoryCutOff(t *testing.T) {
	got, err := readHistory(strings.NewReader(`{"at":1,"event":"none"}` + "\n" + `{"at":2,"ev`))
	if err != nil || len(got) != 1 {
		t.Errorf("a line cut off by a kill: %v, %v", got, err)
	}
	if _, err := readHistory(strings.NewReader("{\n{}\n")); err == nil {
		t.Error("a line that is no entry is accepted")
	}
}
