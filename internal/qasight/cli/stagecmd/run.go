package stagecmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/hooks"
)

// errCapped ends the waits of the workers without a key once checks failed so
// often that the fault is likely elsewhere.
var errCapped = fault.WithCode(fault.New(fault.Permanent, //nolint:gochecknoglobals // a constant
	"another worker found that no more keys may be taken out of use"), hooks.CodeChecks)

// stage is one run of a stage.
type stage struct {
	f       *command.Factory
	config  *config.File
	stage   *config.Stage
	pool    *config.Pool
	broker  broker.Broker
	workers int
	wait    time.Duration
	holder  string

	out output
	// stdout is where the workers' standard output goes.
	stdout io.Writer
}

// worker is how one worker ended.
type worker struct {
	command.Finished
	number int
	took   time.Duration
}

func runStage(ctx context.Context, f *command.Factory, o *runOptions) error {
	cfg, err := f.Config()
	if err != nil {
		return err
	}
	st, err := cfg.Stage(o.stage)
	if err != nil {
		return err
	}
	p, err := cfg.Pool(st.Pool)
	if err != nil {
		return err
	}
	b, err := f.Broker(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // all is done by then
	s := &stage{
		f: f, config: cfg, stage: st, pool: p, broker: b, workers: st.Workers, wait: o.wait,
		holder: f.Holder(o.holder), stdout: f.Streams.Out,
	}
	if o.workers != 0 {
		s.workers = o.workers
	}
	if f.JSON {
		s.stdout = f.Streams.Err
	}
	return s.report(s.run(ctx))
}

// run runs all workers and returns how each ended.
func (s *stage) run(ctx context.Context) []worker {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make([]worker, s.workers)
	signals := make([]chan os.Signal, s.workers)
	for i := range signals {
		signals[i] = make(chan os.Signal, cap(s.f.Signals)+1)
	}
	over := make(chan struct{})
	var fan, workers sync.WaitGroup
	fan.Go(func() { fanOut(s.f.Signals, signals, over) })
	for i := range done {
		workers.Go(func() {
			done[i] = s.work(ctx, i+1, signals[i])
			if fault.CodeOf(done[i].Err) == hooks.CodeChecks {
				cancel(errCapped)
			}
		})
	}
	workers.Wait()
	close(over)
	fan.Wait()
	return done
}

// fanOut passes each signal on to every worker, until over is closed. One that does
// not take them gets as many as its channel holds.
func fanOut(signals <-chan os.Signal, to []chan os.Signal, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case sig := <-signals:
			for _, c := range to {
				select {
				case c <- sig:
				default:
				}
			}
		}
	}
}

// work is one worker from the first wait to the release.
func (s *stage) work(ctx context.Context, number int, signals <-chan os.Signal) worker {
	began := time.Now()
	prefix := fmt.Sprintf("[%s %d] ", s.stage.Name, number)
	stdout, stderr := s.out.lines(s.stdout, prefix), s.out.lines(s.f.Streams.Err, prefix)
	notes, hookOut := s.out.lines(s.f.Streams.Err, prefix), s.out.lines(s.f.Streams.Err, prefix)
	say := func(text string) { _, _ = io.WriteString(notes, "qasight: "+command.Plain(text)+"\n") }

	holder := fmt.Sprintf("%s (%s %d of %d)", s.holder, s.stage.Name, number, s.workers)
	r := s.f.LeaseRunner(s.config, s.pool, s.broker)
	r.Output, r.Say = hookOut, say
	done := command.Job{
		Runner: r,
		Take:   hooks.TakeOptions{Holder: holder, Wait: s.wait, Waiting: s.f.Waiting(s.broker, s.pool.Name, holder, say)},
		Command: proc.Command{
			Shell: s.stage.Command, Dir: s.config.Dir,
			Env: append(s.f.Environ[:len(s.f.Environ):len(s.f.Environ)],
				"QASIGHT_STAGE="+s.stage.Name, "QASIGHT_WORKER="+strconv.Itoa(number), "QASIGHT_WORKERS="+strconv.Itoa(s.workers)),
			Stdout: stdout, Stderr: stderr,
		},
		Signals: signals,
		Held: func(key string) {
			for _, l := range []*lines{stdout, stderr, notes, hookOut} {
				l.flush()
				l.setPrefix(fmt.Sprintf("[%s %d %s] ", s.stage.Name, number, key))
			}
		},
	}.Do(ctx)
	for _, l := range []*lines{stdout, stderr, hookOut} {
		l.flush()
	}
	if done.Err != nil {
		_, _ = io.WriteString(notes, "qasight: "+done.Err.Error()+"\n")
	}
	return worker{done, number, time.Since(began)}
}

// summary is a run in JSON.
type summary struct {
	Stage   string          `json:"stage"`
	Pool    string          `json:"pool"`
	Code    int             `json:"code"`
	Workers []workerSummary `json:"workers"`
}

type workerSummary struct {
	Worker int `json:"worker"`
	// Key it had; absent when it never got one. Unfit are those that failed a hook
	// before.
	Key   string         `json:"key,omitempty"`
	Unfit []string       `json:"unfit,omitempty"`
	Code  int            `json:"code"`
	Took  client.Seconds `json:"seconds"`
	// Error is why the code is not the command's own.
	Error string `json:"error,omitempty"`
}

// report shows how each worker ended. The error has the highest of their codes.
func (s *stage) report(done []worker) error {
	sum := summary{Stage: s.stage.Name, Pool: s.pool.Name}
	rows := [][]string{{"WORKER", "KEY", "CODE", "TIME", "NOTE"}}
	for _, w := range done {
		one := workerSummary{Worker: w.number, Key: w.Key, Code: w.Code, Took: client.SecondsOf(w.took)}
		for _, f := range w.Failed {
			one.Unfit = append(one.Unfit, f.Key)
		}
		if w.Err != nil {
			one.Error = w.Err.Error()
		}
		sum.Code = max(sum.Code, w.Code)
		sum.Workers = append(sum.Workers, one)
		rows = append(rows, []string{
			strconv.Itoa(w.number), orDash(w.Key), strconv.Itoa(w.Code), command.Duration(w.took), note(one),
		})
	}
	var err error
	if s.f.JSON {
		err = s.f.PrintJSON(sum)
	} else {
		err = command.Table(s.f.Streams.Err, rows)
	}
	if sum.Code != 0 {
		return command.Exit(sum.Code, nil)
	}
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// note says in a few words what the code alone does not.
func note(w workerSummary) string {
	text := ""
	if w.Error != "" {
		text = map[int]string{
			command.ExitNoneFree: "no key came free", command.ExitLost: "the lease was lost", command.ExitChecks: "checks failed",
			command.ExitStore: "the lease store does not answer", command.ExitNotFound: "cannot start", command.ExitNotExecutable: "cannot start",
		}[w.Code]
	}
	if len(w.Unfit) > 0 {
		if text != "" {
			text += "; "
		}
		text += fmt.Sprintf("%d unfit", len(w.Unfit))
	}
	return text
}
