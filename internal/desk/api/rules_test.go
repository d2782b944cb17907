package api_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/api"
)

// ruleRun is one worked example of the page under way, on a desk whose clock it
// moves.
type ruleRun struct {
	t       *testing.T
	d       *leasing
	c, root *client.Client
	now     time.Time
	epoch   int64
	// used is the last pick of each proxy, held the lease.
	used map[string]string
	held map[string]*client.Lease
}

// Every worked example of the page comes out as it says.
func TestRulesOfThePage(t *testing.T) {
	text, n := page(t), 0
	for _, m := range blocks.FindAllStringSubmatchIndex(text, -1) {
		if text[m[2]:m[3]] != "desk" {
			continue
		}
		n++
		line := 1 + strings.Count(text[:m[0]], "\n")
		t.Run(fmt.Sprint("line ", line), func(t *testing.T) {
			r := newRuleRun(t)
			for one := range strings.Lines(text[m[4]:m[5]]) {
				line++
				if err := r.line(strings.TrimSpace(one)); err != nil {
					t.Fatalf("docs/api.md line %d: %s: %v", line, strings.TrimSpace(one), err)
				}
			}
		})
	}
	rules := regexp.MustCompile(`(?m)^\*\*(\d+)\. `).FindAllStringSubmatch(text, -1)
	for i, m := range rules {
		if m[1] != strconv.Itoa(i+1) {
			t.Errorf("rule %d has the number %s", i+1, m[1])
		}
	}
	if n < 12 || len(rules) < 12 {
		t.Errorf("%d examples of %d rules were found: the search is broken", n, len(rules))
	}
}

func newRuleRun(t *testing.T) *ruleRun {
	r := &ruleRun{t: t, now: began(), used: map[string]string{}, held: map[string]*client.Lease{}}
	r.d = serveDesk(t, leasetest.Options{Now: func() time.Time { return r.now }}, func(o *api.Options) {
		o.Selection, o.Access, o.Limits.PerToken = naming{}, namedAccess{}, -1
	})
	r.c, r.root = r.d.client(t, runnerToken), r.d.client(t, otherToken)
	opened, err := r.d.service.Do(t.Context(), lease.OpenEpoch{Owner: "test"})
	if err != nil {
		t.Fatal(err)
	}
	r.epoch = opened[0].Epoch
	return r
}

func (r *ruleRun) do(op lease.Op) error {
	results, err := r.d.service.Do(r.t.Context(), op)
	if err == nil {
		err = results[0].Err
	}
	return err
}

// line runs one line of an example.
func (r *ruleRun) line(line string) error {
	did, want, _ := strings.Cut(line, "→")
	want = strings.TrimSpace(want)
	words := strings.Fields(did)
	switch words[0] {
	case "pool":
		return r.pool(words[1:])
	case "proxy":
		return r.proxy(words[1:])
	}
	at, err := time.ParseDuration(words[0])
	if err != nil {
		return err
	}
	next := began().Add(at)
	if next.Before(r.now) {
		return fmt.Errorf("it is later already")
	}
	r.now = next
	if words[1] == "join" {
		return r.proxy(words[2:])
	}
	got, err := r.act(words[1:])
	if e, ok := errors.AsType[*client.Error](err); ok && e.Code != "none_free" {
		got, err = string(e.Class)+":"+e.Code, nil
	}
	if err == nil && got != want && !strings.HasPrefix(got, want+", rests ") {
		err = fmt.Errorf("it is %q", got)
	}
	return err
}

// settings reads "name=value" words; one without "=" has the value "".
func settings(words []string) map[string]string {
	all := map[string]string{}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		all[name] = value
	}
	return all
}

func (r *ruleRun) pool(words []string) error {
	p := lease.Pool{Name: "crawl.eu"}
	var errs []error
	span := func(text string) time.Duration {
		d, err := time.ParseDuration(text)
		errs = append(errs, err)
		return d
	}
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		errs = append(errs, err)
		return n
	}
	for name, value := range settings(words) {
		switch name {
		case "cooldown":
			p.Cooldown = span(value)
		case "ttl":
			p.TTL = span(value)
		case "ban":
			parts := strings.Split(value, ",")
			p.Ban = lease.Ban{Initial: span(parts[0]), Factor: float64(number(parts[1])), Max: span(parts[2])}
		case "scope":
			p.Scope = lease.Scope(value)
		case "inFlight":
			p.InFlight = number(value)
		case "newShare":
			p.NewShare = number(value)
		case "targets":
			p.Sites = value == "site"
		default:
			return fmt.Errorf("a pool has no %s", name)
		}
	}
	return errors.Join(append(errs, r.do(lease.PutPool{Epoch: r.epoch, Pool: p}))...)
}

func (r *ruleRun) proxy(words []string) error {
	put := lease.PutKey{Epoch: r.epoch, Key: "crawl." + words[0], UID: "u-" + words[0], Pools: []string{"crawl.eu"}, Attributes: map[string]string{}}
	for name, value := range settings(words[1:]) {
		switch name {
		case "exit":
			put.ExitIP = value
		case "unfit":
			put.Unfit = "3 checks failed"
		case "weight":
			n, err := strconv.Atoi(value)
			if err != nil {
				return err
			}
			put.Weight = n
		case "scheme":
			put.Attributes["protocol"] = value
		default:
			put.Attributes["label:"+name] = value
		}
	}
	return r.do(put)
}

// act does something and says what came of it.
func (r *ruleRun) act(words []string) (string, error) {
	ctx := r.t.Context()
	switch words[0] {
	case "next":
		return r.next(ctx, words[1:])
	case "take":
		var w client.Wish
		if len(words) > 2 {
			w.Selector = strings.TrimPrefix(words[2], "selector=")
		}
		l, err := r.c.Take(ctx, "crawl.eu", client.TakeOptions{Target: words[1], Wish: w})
		if err != nil {
			return "", err
		}
		name := strings.TrimPrefix(l.Key(), "crawl.")
		r.held[name] = l
		return name, nil
	case "release":
		_, err := r.held[words[1]].Release(ctx, client.ReleaseRequest{})
		return "done", err
	case "lift":
		return "done", r.root.LiftCooldowns(ctx, "crawl", words[1], words[2])
	case "report":
		req := client.ReportRequest{Outcome: words[2], Target: words[3], Pool: "crawl.eu", Use: r.used[words[1]]}
		if len(words) > 4 {
			req.Replace = &client.NextRequest{}
		}
		done, err := r.c.Report(ctx, "crawl", words[1], req)
		text := fmt.Sprintf("rests %s, strikes %d", done.Rest.Duration(), done.Strikes)
		switch {
		case done.Replacement != nil:
			text += ", then " + done.Replacement.Name
			r.used[done.Replacement.Name] = done.Replacement.Use
		case done.NoReplacement != nil:
			text += ", then none"
		}
		return text, err
	}
	return "", fmt.Errorf("what is %s?", words[0])
}

// next picks, once or some times at intervals.
func (r *ruleRun) next(ctx context.Context, words []string) (string, error) {
	req := client.NextRequest{Pool: "crawl.eu", Target: words[0]}
	if len(words) == 5 { // TARGET 9 times, 10s apart
		n, err := strconv.Atoi(words[1])
		apart, bad := time.ParseDuration(words[3])
		var got []string
		for i := range n {
			p, failed := r.c.Next(ctx, req)
			err = errors.Join(err, failed)
			got = append(got, p.Name)
			r.used[p.Name] = p.Use
			if i < n-1 {
				r.now = r.now.Add(apart)
			}
		}
		return strings.Join(got, " "), errors.Join(err, bad)
	}
	for name, value := range settings(words[1:]) {
		switch name {
		case "scheme":
			req.Scheme = value
		case "selector":
			req.Selector = value
		default:
			return "", fmt.Errorf("what is %s?", name)
		}
	}
	p, err := r.c.Next(ctx, req)
	if err == nil {
		r.used[p.Name] = p.Use
		return fmt.Sprintf("%s, rests %s", p.Name, p.Rested.Duration()), nil
	}
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Code != "none_free" {
		return "", err
	}
	var why []string
	for _, w := range e.Why {
		why = append(why, fmt.Sprintf("%d %s", w.Count, w.Cause))
	}
	text := "none: " + strings.Join(why, ", ")
	if e.UntilFree > 0 {
		text += "; due in " + e.UntilFree.String()
	}
	return text, nil
}
