package controlplane

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// onceForProcess guards what Kubernetes and etcd keep as variables of the
// whole process and do not protect themselves: the first control plane of a
// process sets them, before anything of it runs.
var onceForProcess sync.Once

// routeProcessLogs sends klog, which is one logger for the whole process, to
// log, and silences the warnings that API clients print to standard error.
func routeProcessLogs(log *slog.Logger) {
	onceForProcess.Do(func() {
		last := &atomic.Pointer[string]{}
		klog.SetSlogLogger(slog.New(chatter{log.Handler(), last}))
		// Upstream ends the process when a part cannot go on, such as a hook
		// that fails at the start. Then the last line is no chatter.
		exit := klog.OsExit
		klog.OsExit = func(code int) {
			if text := last.Load(); text != nil {
				log.Error("a part of the API server gave up", "said", *text)
			}
			exit(code)
		}
		rest.SetDefaultWarningHandler(rest.NoWarnings{})
		// etcd sets two segments of 64 MB aside at once; ours stay small.
		wal.SegmentSizeBytes = 4 << 20
	})
}

// chatter hands records on at debug level, whatever they claim to be: the
// upstream parts log errors for what is none (a watch that ends, a lease that
// somebody else renewed, each stop). Failures that matter come back as errors.
type chatter struct {
	next slog.Handler
	// last is the text of the last error.
	last *atomic.Pointer[string]
}

func (h chatter) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.next.Enabled(ctx, slog.LevelDebug)
}

func (h chatter) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		h.last.Store(&r.Message)
	}
	if !h.next.Enabled(ctx, slog.LevelDebug) {
		return nil // klog does not ask before it hands errors on
	}
	r = r.Clone()
	if r.Level > slog.LevelDebug {
		r.AddAttrs(slog.String("said", strings.ToLower(r.Level.String())))
	}
	r.Level = slog.LevelDebug
	return h.next.Handle(ctx, r)
}

func (h chatter) WithAttrs(a []slog.Attr) slog.Handler { return chatter{h.next.WithAttrs(a), h.last} }

func (h chatter) WithGroup(g string) slog.Handler { return chatter{h.next.WithGroup(g), h.last} }

// zapLogger makes the logger that etcd wants: warnings and errors, as chatter.
func zapLogger(log *slog.Logger) *zap.Logger {
	return zap.New(zapCore{log: log, LevelEnabler: zapcore.WarnLevel})
}

type zapCore struct {
	zapcore.LevelEnabler
	log    *slog.Logger
	fields []zapcore.Field
}

func (c zapCore) With(f []zapcore.Field) zapcore.Core {
	c.fields = append(c.fields[:len(c.fields):len(c.fields)], f...)
	return c
}

func (c zapCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && c.log.Enabled(context.Background(), slog.LevelDebug) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c zapCore) Write(e zapcore.Entry, f []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], f...) {
		f.AddTo(enc)
	}
	c.log.Debug("etcd: "+e.Message, "said", e.Level.String(), "fields", enc.Fields)
	return nil
}

func (zapCore) Sync() error { return nil }
