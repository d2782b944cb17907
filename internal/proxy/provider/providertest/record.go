package providertest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
)

// Result is what one subtest said.
type Result struct {
	Subtest
	Failed, Skipped bool
	// Messages are its log and its failures, in order.
	Messages []string
}

// Record runs the subtests that prove one of the clauses (none given: all) and
// returns what they said, without failing any test. It serves tests of the
// suite: a broken provider must be caught. A failure outside of the subtests
// is the last Result, without clauses.
func Record(h Harness, clauses ...string) []Result {
	var only []string
	if len(clauses) > 0 {
		only = clauses
	}
	r := &recorder{name: "suite"}
	r.do(func() { runAll(r, h, only) })
	if r.Failed() {
		r.results = append(r.results, Result{Failed: true, Messages: r.messages})
	}
	return r.results
}

// recorder is a T that keeps what is said.
type recorder struct {
	name    string
	results []Result

	mu       sync.Mutex
	failed   bool
	skipped  bool
	messages []string
	cleanups []func()
}

// Run runs f as a subtest and keeps its result.
func (r *recorder) Run(name string, f func(T)) bool {
	sub := &recorder{name: name}
	sub.do(func() { f(sub) })
	i := slices.IndexFunc(Subtests(), func(s Subtest) bool { return s.Name() == name })
	r.results = append(r.results, Result{
		Subtest: Subtests()[i], Failed: sub.Failed(), Skipped: sub.skipped, Messages: sub.messages,
	})
	return !sub.Failed()
}

// do runs f, then the clean-ups, each in a goroutine of its own, which
// FailNow ends as it does with the real T.
func (r *recorder) do(f func()) {
	r.goroutine(f)
	for {
		r.mu.Lock()
		n := len(r.cleanups)
		if n == 0 {
			r.mu.Unlock()
			return
		}
		last := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		r.mu.Unlock()
		r.goroutine(last)
	}
}

func (r *recorder) goroutine(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				r.Errorf("panic: %v", v)
			}
		}()
		f()
	}()
	<-done
}

func (r *recorder) Helper()      {}
func (r *recorder) Name() string { return r.name }

func (r *recorder) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, fmt.Sprintf(format, args...))
}

func (r *recorder) Errorf(format string, args ...any) {
	r.Logf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skipf(format string, args ...any) {
	r.Logf(format, args...)
	r.skipped = true
	runtime.Goexit()
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}
