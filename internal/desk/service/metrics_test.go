package service_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/desk/service"
)

func TestMetrics(t *testing.T) {
	bubble(t, []string{"secret-key-name"}, func(t *testing.T, store *tap) {
		reg := prometheus.NewRegistry()
		o := service.Options{Store: store, Log: discard(), Metrics: reg}
		s, err := service.New(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := service.New(o); fault.Of(err) != fault.Conflict {
			t.Errorf("registered twice: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		synctest.Wait() // the first news are heard
		held := take(t, s)
		a := newAsker(s)
		a.take(t.Context(), "w", service.TakeRequest{Wait: time.Minute})
		synctest.Wait()
		if got := value(t, reg, "fleetdesk_desk_waiters", ""); got != 1 {
			t.Errorf("%v wait", got)
		}
		wantCode(t, takeErr(t, s, service.TakeRequest{Pool: "q"}), fault.NotFound, "pool")
		release(t, s, held)
		if got := a.next(t); got.err != nil {
			t.Fatal(got.err)
		}
		synctest.Wait()
		for _, want := range []struct {
			name, labels string
			value        float64
		}{
			{"fleetdesk_desk_waiters", "", 0},
			{"fleetdesk_desk_grants_total", "at_once", 1},
			{"fleetdesk_desk_grants_total", "waited", 1},
			{"fleetdesk_desk_hand_off_seconds", "", 1},
			{"fleetdesk_desk_ops_total", "ok release", 1},
			{"fleetdesk_desk_ops_total", "not_found take", 1},
			{"fleetdesk_desk_ops_total", "ok take", 2},
			{"fleetdesk_desk_ops_total", "busy take", 1},
		} {
			if got := value(t, reg, want.name, want.labels); got != want.value {
				t.Errorf("%s{%s} is %v, want %v", want.name, want.labels, got, want.value)
			}
		}
		if value(t, reg, "fleetdesk_desk_batch_ops", "") == 0 || value(t, reg, "fleetdesk_desk_transaction_seconds", "ok") == 0 {
			t.Error("transactions are not counted")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// value is that of a metric, or how much a histogram observed; labels are its
// label values, sorted by the labels' names.
func value(t *testing.T, reg *prometheus.Registry, name, labels string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if strings.Contains(m.String(), "secret-key-name") {
				t.Fatalf("a key's name is in a metric: %s", m)
			}
			if f.GetName() == name && valuesOf(m) == labels {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

func valuesOf(m *dto.Metric) string {
	var all []string
	for _, l := range m.GetLabel() {
		all = append(all, l.GetValue())
	}
	return strings.Join(all, " ")
}
