package proxyprovider_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/proxy/controller/proxyprovider"
	"fleetdesk/internal/proxy/monitor"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/sweep"
)

// run runs the last command that a text names, as a person would.
func (r *rig) run(text string) error {
	r.t.Helper()
	at := strings.LastIndex(text, "kubectl ")
	if at < 0 {
		r.t.Fatalf("no command in %q", text)
	}
	command, _, _ := strings.Cut(text[at:], "; ")
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		assets = "../../../../bin/k8s"
	}
	assets, err := filepath.Abs(assets)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := cluster.Config(r.t)
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Token: cfg.BearerToken}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "x"
	home := r.t.TempDir()
	file := filepath.Join(home, "config")
	if err := clientcmd.WriteToFile(*kubeconfig, file); err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.CommandContext(r.t.Context(), "sh", "-c", command)
	cmd.Env = []string{"PATH=" + assets + string(filepath.ListSeparator) + os.Getenv("PATH"), "HOME=" + home, "KUBECONFIG=" + file}
	out, err := cmd.CombinedOutput()
	r.t.Logf("$ %s\n%s", command, out)
	return err
}

// A row of a provider that left the file is removed by no sweep: the object
// says so, with a command that works, also when a person asks the sweep.
func TestARowOfAProviderThatLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.reconcile()
	long := instance(1)
	long.Proxy = strings.Repeat("n", 63) + "/" + strings.Repeat("p", 253)
	long.ProviderID = "fake://" + strings.Repeat("b", 253) + "/" + uid(1)
	if err := r.rec.Abandon(t.Context(), r.name, long); err != nil {
		t.Fatal(err)
	}
	r.abandon(2)
	r.abandon(3)
	r.has()
	r.reconcile()
	message := r.there().Status.Message
	if !strings.Contains(message, "put it back first") || strings.Contains(message, "kubectl annotate") {
		t.Errorf("it names what does nothing, or not what does: %s", message)
	}
	if err := r.run(message); err != nil {
		t.Fatal(err)
	}
	if got := uidsOf(r.there()); len(got) != 2 || got[0] != uid(2) {
		t.Fatalf("left are %v", got)
	}
	if err := r.run(message); err == nil {
		t.Error("run again, it took another row")
	}

	r.annotate(v1alpha1.RemoveAbandonedAnnotation, uid(3))
	r.reconcile()
	r.reconcile()
	events, _ := r.take()
	if len(events) != 1 || !strings.Contains(events[0], proxyprovider.EventNotUnderstood) || !strings.Contains(events[0], "names "+uid(3)+", and no sweep") {
		t.Fatalf("asked of nobody: %q", events)
	}
	if err := r.run(events[0]); err != nil {
		t.Fatal(err)
	}
	if got := uidsOf(r.there()); len(got) != 1 || got[0] != uid(2) {
		t.Fatalf("left are %v", got)
	}
	r.reconcile()
	if err := r.run(r.there().Status.Message); err != nil {
		t.Fatal(err)
	}
	r.reconcile()
	r.reconcile()
	if r.get() != nil {
		t.Error("it stays")
	}
}

// A sweep that only reports does not do what a person asks: that is told once.
func TestAskedOfADryRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	report := sweepOf(item(sweep.Abandoned, 1))
	report.DryRun = true
	r.swept(r.name, report)
	r.abandon(1)
	r.annotate(v1alpha1.RemoveAbandonedAnnotation, uid(1))
	r.reconcile()
	r.reconcile()
	if events, asked := r.take(); len(events) != 1 || !strings.Contains(events[0], "without --gc-dry-run") || len(asked) != 1 {
		t.Errorf("%q %q", events, asked)
	}
	if message := r.there().Status.Message; !strings.Contains(message, "without --gc-dry-run, and then: kubectl annotate") {
		t.Errorf("%s", message)
	}
}

// A provider that leaves the file while its last sweep left orphans keeps its
// object and that report: nobody else knows of them. A person ends it.
func TestOrphansOfAProviderThatLeft(t *testing.T) {
	t.Parallel()
	for _, v := range []sweep.Verdict{sweep.Held, sweep.Failed, sweep.Due, sweep.Waiting, sweep.Removed} {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.swept(r.name, sweepOf(item(v, 1)))
			r.reconcile()
			was := r.there().Status.Sweep
			r.has()
			r.world.mu.Lock()
			clear(r.sweeps)
			r.world.mu.Unlock()
			r.rec = r.over(r.client) // also over a start
			r.reconcile()
			if v == sweep.Removed {
				if r.get() != nil {
					t.Error("nothing is left, and it stays")
				}
				return
			}
			o := r.there()
			if o.Status.Sweep == nil || len(o.Status.Sweep.Items) != 1 || !o.Status.Sweep.Time.Equal(&was.Time) {
				t.Fatalf("what was found is gone: %+v", o.Status.Sweep)
			}
			c := condition(o, v1alpha1.ConditionClean)
			if o.Status.Reason != v1alpha1.ReasonRemoved || c.Reason != v1alpha1.ReasonOrphans || r.columns()["Orphans"] != "1" {
				t.Errorf("%+v", o.Status)
			}
			if !strings.Contains(o.Status.Message, "left 1 orphans") || !strings.Contains(c.Message, "put it back") {
				t.Errorf("%s", o.Status.Message)
			}
			if err := r.run(o.Status.Message); err != nil { // it deletes it
				t.Fatal(err)
			}
			r.reconcile()
			r.reconcile()
			if r.get() != nil {
				t.Error("deleted by a person, and it is there again")
			}
		})
	}
}

// A sweep that could not look takes nothing of what is shown away.
func TestASweepThatCouldNotLook(t *testing.T) {
	t.Parallel()
	failed := errors.New("the Proxies cannot be listed")
	later := moment.Add(time.Minute)
	for name, report := range map[string]sweep.Report{
		"this process found it":       *with(held(), func(s *sweep.Report) { s.Err, s.Time = failed, later }),
		"a process before this found": {Err: failed, Time: later},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.swept(r.name, held())
			r.reconcile()
			r.swept(r.name, report)
			r.reconcile()
			o := r.there()
			s := o.Status.Sweep
			if len(s.Items) != 1 || s.Orphans != 1 || s.Hash != hash || s.Instances != 9 || !s.Time.Time.Equal(later.Truncate(time.Second)) {
				t.Errorf("it shows %+v", s)
			}
			if !strings.Contains(s.Message, failed.Error()) || !strings.Contains(condition(o, v1alpha1.ConditionClean).Message, failed.Error()) {
				t.Errorf("it does not say so: %q, %q", s.Message, condition(o, v1alpha1.ConditionClean).Message)
			}
		})
	}
}

// An abandoned instance whose removal a person asked for and which cannot be
// removed is no orphan: it is written down.
func TestAnAbandonedInstanceThatDoesNotGoIsNoOrphan(t *testing.T) {
	t.Parallel()
	for _, verdict := range []sweep.Verdict{sweep.Failed, sweep.Due, sweep.Held, sweep.Removing} {
		r := newRig(t)
		r.swept(r.name, sweep.Report{Time: moment, Instances: 1, Items: []sweep.Item{
			{What: sweep.Instance, Host: "box-1", ID: "fake://box-1/1", UID: "u", Verdict: verdict, Left: true},
		}})
		r.reconcile()
		if s := r.there().Status.Sweep; s.Orphans != 0 || len(s.Items) != 1 {
			t.Errorf("%s: %+v", verdict, s)
		}
	}
}

// A host is named once, whether its row's message names it or not.
func TestAHostIsNamedOnce(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		`host "box-1": SSH material: no key`: `SSHMaterial: host "box-1": SSH material: no key`,
		`host box-1: no key`:                 `SSHMaterial: host box-1: no key`,
		`box-1 has no key`:                   `SSHMaterial: box-1 has no key`,
		`host box-10 took its key`:           `host box-1: SSHMaterial: host box-10 took its key`,
		`no key`:                             `host box-1: SSHMaterial: no key`,
	} {
		r := newRig(t)
		r.checked(r.name, monitor.Report{Checked: moment, Hosts: []monitor.Host{{
			HostHealth: provider.HostHealth{Host: "box-1", Reason: "SSHMaterial", Message: message}, Checked: moment, Since: moment,
		}}})
		r.reconcile()
		if got := r.there().Status.Message; got != want {
			t.Errorf("%s: %q, want %q", message, got, want)
		}
	}
}
