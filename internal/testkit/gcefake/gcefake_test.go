package gcefake_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	compute "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"

	"fleetdesk/internal/testkit/gcefake"
)

const zone = "europe-west1-b"

// rig is a server and the official client over it. The client's transport
// checks each answer against the client's own structs.
type rig struct {
	*gcefake.Server
	*compute.Service
	project string
	http    *http.Client
}

func newRig(t *testing.T, o gcefake.Options) *rig {
	t.Helper()
	s, err := gcefake.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	conf, err := google.JWTConfigFromJSON(s.Key(), compute.ComputeScope)
	if err != nil {
		t.Fatal(err)
	}
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Transport: base, Timeout: 10 * time.Second})
	client := &http.Client{Transport: &oauth2.Transport{Source: conf.TokenSource(ctx), Base: &strict{t: t, base: base}}}
	service, err := compute.NewService(t.Context(), option.WithHTTPClient(client), option.WithEndpoint(s.Endpoint()))
	if err != nil {
		t.Fatal(err)
	}
	return &rig{s, service, s.Project(), client}
}

// strict fails for an answer that has a field which the client's struct for it
// does not have: the fake would be kinder, or stranger, than the real one.
type strict struct {
	t    *testing.T
	base http.RoundTripper
}

// shapes are the client's structs by the kind that an answer says it is.
var shapes = map[string]any{
	"compute#instance": compute.Instance{}, "compute#instanceList": compute.InstanceList{},
	"compute#operation": compute.Operation{}, "compute#operationList": compute.OperationList{},
	"compute#disk": compute.Disk{}, "compute#diskList": compute.DiskList{},
	"compute#instanceGroup": compute.InstanceGroup{}, "compute#instanceGroupList": compute.InstanceGroupList{},
	"compute#zone": compute.Zone{}, "compute#region": compute.Region{}, "compute#project": compute.Project{}, "compute#machineType": compute.MachineType{},
}

func (s *strict) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.base.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	data, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(data))
	if err != nil {
		return resp, err
	}
	var kind struct{ Kind string }
	_ = json.Unmarshal(data, &kind)
	shape, ok := shapes[kind.Kind]
	if !ok {
		s.t.Errorf("%s %s answers kind %q, which is none of the client's", r.Method, r.URL.Path, kind.Kind)
		return resp, nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(reflect.New(reflect.TypeOf(shape)).Interface()); err != nil {
		s.t.Errorf("%s %s: the answer is no %T: %v", r.Method, r.URL.Path, shape, err)
	}
	return resp, nil
}

func machine(name string) *compute.Instance {
	return &compute.Instance{
		Name: name, MachineType: "zones/" + zone + "/machineTypes/e2-micro", Labels: map[string]string{"team": "crawl"},
		Disks: []*compute.AttachedDisk{{Boot: true, AutoDelete: true, InitializeParams: &compute.AttachedDiskInitializeParams{
			SourceImage: "projects/debian-cloud/global/images/family/debian-12", DiskType: "zones/" + zone + "/diskTypes/pd-balanced",
		}}},
		NetworkInterfaces: []*compute.NetworkInterface{{Network: "global/networks/default", AccessConfigs: []*compute.AccessConfig{{Type: "ONE_TO_ONE_NAT"}}}},
	}
}

// finish waits for an operation and returns it.
func (r *rig) finish(t *testing.T, op *compute.Operation, err error) *compute.Operation {
	t.Helper()
	if err == nil {
		op, err = r.ZoneOperations.Wait(r.project, zone, op.Name).Do()
	}
	if err != nil {
		t.Fatal(err)
	}
	if op.Status != "DONE" {
		t.Fatalf("operation %s is %s", op.Name, op.Status)
	}
	return op
}

func (r *rig) insert(t *testing.T, in *compute.Instance) *compute.Operation {
	t.Helper()
	op, err := r.Service.Instances.Insert(r.project, zone, in).Do()
	return r.finish(t, op, err)
}

func codeOf(err error) (int, string) {
	e, ok := errors.AsType[*googleapi.Error](err)
	if !ok {
		return 0, fmt.Sprint(err)
	}
	reason := ""
	if len(e.Errors) > 0 {
		reason = e.Errors[0].Reason
	}
	return e.Code, reason
}

// Every call that there is, by the official client, with every answer checked
// against its structs.
func TestEveryCall(t *testing.T) {
	r := newRig(t, gcefake.Options{})
	if op := r.insert(t, machine("a")); op.Error != nil || op.OperationType != "insert" || !strings.HasSuffix(op.TargetLink, "/zones/"+zone+"/instances/a") {
		t.Fatalf("insert: %+v", op)
	}
	vm, err := r.Service.Instances.Get(r.project, zone, "a").Do()
	if err != nil || vm.Status != "RUNNING" || vm.Id == 0 || vm.NetworkInterfaces[0].AccessConfigs[0].NatIP == "" || vm.NetworkInterfaces[0].NetworkIP == "" {
		t.Fatalf("get: %+v, %v", vm, err)
	}
	if _, err := time.Parse(time.RFC3339, vm.CreationTimestamp); err != nil {
		t.Error(err)
	}
	for name, call := range map[string]func() error{
		"instances.list": func() error {
			_, err := r.Service.Instances.List(r.project, zone).Filter("labels.team = crawl").Do()
			return err
		},
		"disks.get":        func() error { _, err := r.Service.Disks.Get(r.project, zone, "a").Do(); return err },
		"disks.list":       func() error { _, err := r.Service.Disks.List(r.project, zone).Do(); return err },
		"zones.get":        func() error { _, err := r.Service.Zones.Get(r.project, zone).Do(); return err },
		"regions.get":      func() error { _, err := r.Regions.Get(r.project, "europe-west1").Do(); return err },
		"projects.get":     func() error { _, err := r.Projects.Get(r.project).Do(); return err },
		"machineTypes.get": func() error { _, err := r.MachineTypes.Get(r.project, zone, "e2-micro").Do(); return err },
		"zoneOperations.list": func() error {
			_, err := r.ZoneOperations.List(r.project, zone).Filter("targetLink eq .*/a").Do()
			return err
		},
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_ = r.Preempt(zone, "a")
	op, err := r.Service.Instances.Start(r.project, zone, "a").Do()
	r.finish(t, op, err)
	_ = r.SetStatus(zone, "a", "SUSPENDED")
	op, err = r.Service.Instances.Resume(r.project, zone, "a").Do()
	r.finish(t, op, err)
	op, err = r.Service.Instances.Delete(r.project, zone, "a").NoGracefulShutdown(true).Do()
	r.finish(t, op, err)
	if n := len(r.Server.Instances(zone)) + len(r.Server.Disks(zone)); n != 0 {
		t.Errorf("%d things are left", n)
	}
	r.LeaveDisk(zone, "d", nil)
	op, err = r.Service.Disks.Delete(r.project, zone, "d").Do()
	r.finish(t, op, err)
	op, err = r.InstanceGroups.Insert(r.project, zone, &compute.InstanceGroup{Name: "g", NamedPorts: []*compute.NamedPort{{Name: "a", Port: 1}}}).Do()
	r.finish(t, op, err)
	op, err = r.InstanceGroups.SetNamedPorts(r.project, zone, "g", &compute.InstanceGroupsSetNamedPortsRequest{NamedPorts: []*compute.NamedPort{{Name: "b", Port: 2}}}).Do()
	r.finish(t, op, err)
	l, err := r.InstanceGroups.List(r.project, zone).Filter("name eq g.*").Do()
	if err != nil || len(l.Items) != 1 || l.Items[0].NamedPorts[0].Name != "b" {
		t.Errorf("%+v, %v", l, err)
	}
	op, err = r.InstanceGroups.Delete(r.project, zone, "g").Do()
	r.finish(t, op, err)
	if _, err := r.ZoneOperations.Get(r.project, zone, op.Name).Do(); err != nil {
		t.Error(err)
	}
}

// What the real API refuses is refused, with its own status and reason.
func TestRefusals(t *testing.T) {
	r := newRig(t, gcefake.Options{})
	long := strings.Repeat("x", 256<<10+1)
	for name, tc := range map[string]struct {
		change func(*compute.Instance)
		status int
		reason string
	}{
		"name":        {func(in *compute.Instance) { in.Name = "A" }, 400, "invalid"},
		"long name":   {func(in *compute.Instance) { in.Name = strings.Repeat("a", 64) }, 400, "invalid"},
		"label":       {func(in *compute.Instance) { in.Labels = map[string]string{"a": "B"} }, 400, "invalid"},
		"long label":  {func(in *compute.Instance) { in.Labels = map[string]string{"a": strings.Repeat("b", 64)} }, 400, "invalid"},
		"label's key": {func(in *compute.Instance) { in.Labels = map[string]string{"a.b": "c"} }, 400, "invalid"},
		"description": {func(in *compute.Instance) { in.Description = strings.Repeat("b", 2049) }, 400, "invalid"},
		"metadata": {func(in *compute.Instance) {
			in.Metadata = &compute.Metadata{Items: []*compute.MetadataItems{{Key: "user-data", Value: &long}}}
		}, 400, "invalid"},
		"metadata's key": {func(in *compute.Instance) {
			in.Metadata = &compute.Metadata{Items: []*compute.MetadataItems{{Key: "a b", Value: &long}}}
		}, 400, "invalid"},
		"machine type":    {func(in *compute.Instance) { in.MachineType = "zones/" + zone + "/machineTypes/x" }, 400, "invalid"},
		"type elsewhere":  {func(in *compute.Instance) { in.MachineType = "zones/us-east1-b/machineTypes/e2-micro" }, 400, "invalid"},
		"image":           {func(in *compute.Instance) { in.Disks[0].InitializeParams.SourceImage = "projects/a/global/images/b" }, 404, "notFound"},
		"no disk":         {func(in *compute.Instance) { in.Disks = nil }, 400, "invalid"},
		"disk type":       {func(in *compute.Instance) { in.Disks[0].InitializeParams.DiskType = "x" }, 400, "invalid"},
		"disk too small":  {func(in *compute.Instance) { in.Disks[0].InitializeParams.DiskSizeGb = 1 }, 400, "invalid"},
		"network":         {func(in *compute.Instance) { in.NetworkInterfaces[0].Network = "global/networks/x" }, 400, "invalid"},
		"no network":      {func(in *compute.Instance) { in.NetworkInterfaces = nil }, 400, "invalid"},
		"service account": {func(in *compute.Instance) { in.ServiceAccounts = []*compute.ServiceAccount{{Email: "x@example.com"}} }, 400, "badRequest"},
	} {
		in := machine("a")
		tc.change(in)
		_, err := r.Service.Instances.Insert(r.project, zone, in).Do()
		if status, reason := codeOf(err); status != tc.status || reason != tc.reason {
			t.Errorf("%s: %d %s; want %d %s", name, status, reason, tc.status, tc.reason)
		}
	}
	r.insert(t, machine("a"))
	for name, tc := range map[string]struct {
		call   func() error
		status int
		reason string
	}{
		"again":         {func() error { _, err := r.Service.Instances.Insert(r.project, zone, machine("a")).Do(); return err }, 409, "alreadyExists"},
		"absent":        {func() error { _, err := r.Service.Instances.Get(r.project, zone, "b").Do(); return err }, 404, "notFound"},
		"delete absent": {func() error { _, err := r.Service.Instances.Delete(r.project, zone, "b").Do(); return err }, 404, "notFound"},
		"zone":          {func() error { _, err := r.Service.Instances.Get(r.project, "x-y1-z", "a").Do(); return err }, 400, "invalid"},
		"zone itself":   {func() error { _, err := r.Service.Zones.Get(r.project, "x-y1-z").Do(); return err }, 404, "notFound"},
		"project":       {func() error { _, err := r.Service.Instances.Get("other", zone, "a").Do(); return err }, 404, "notFound"},
		"filter":        {func() error { _, err := r.Service.Instances.List(r.project, zone).Filter("name: a").Do(); return err }, 400, "invalid"},
		"request id": {func() error {
			_, err := r.Service.Instances.Delete(r.project, zone, "a").RequestId("1").Do()
			return err
		}, 400, "invalid"},
		"disk in use":    {func() error { _, err := r.Service.Disks.Delete(r.project, zone, "a").Do(); return err }, 400, "resourceInUseByAnotherResource"},
		"resume running": {func() error { _, err := r.Service.Instances.Resume(r.project, zone, "a").Do(); return err }, 400, "resourceNotReady"},
		"named port": {func() error {
			_, err := r.InstanceGroups.Insert(r.project, zone, &compute.InstanceGroup{Name: "g", NamedPorts: []*compute.NamedPort{{Name: "A", Port: 1}}}).Do()
			return err
		}, 400, "invalid"},
		"denied": {func() error {
			defer r.Deny("compute.instances.list")()
			_, err := r.Service.Instances.List(r.project, zone).Do()
			return err
		}, 403, "forbidden"},
		"API off": {func() error {
			defer r.DisableAPI()()
			_, err := r.Service.Instances.List(r.project, zone).Do()
			return err
		}, 403, "accessNotConfigured"},
		"broken": {func() error {
			defer r.BreakZone(zone)()
			_, err := r.Service.Instances.List(r.project, zone).Do()
			return err
		}, 503, "backendError"},
		"quota": {func() error {
			defer r.Quota("europe-west1", "INSTANCES", 1)()
			_, err := r.Service.Instances.Insert(r.project, zone, machine("b")).Do()
			return err
		}, 403, "quotaExceeded"},
	} {
		if status, reason := codeOf(tc.call()); status != tc.status || reason != tc.reason {
			t.Errorf("%s: %d %s; want %d %s", name, status, reason, tc.status, tc.reason)
		}
	}
	// A field that the API does not have.
	resp, err := r.http.Post(r.Endpoint()+"projects/"+r.project+"/zones/"+zone+"/instances", "application/json", strings.NewReader(`{"name":"b","userData":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 400 || !strings.Contains(string(body), "userData") {
		t.Errorf("an unknown field: %d %s", resp.StatusCode, body)
	}
}

// An operation is PENDING, RUNNING and DONE; its instance shows from RUNNING on;
// the same request id is the same operation; what fails inside fails inside.
func TestOperations(t *testing.T) {
	r := newRig(t, gcefake.Options{Delay: 300 * time.Millisecond})
	const id = "01234567-89ab-4def-8123-456789abcdef"
	op, err := r.Service.Instances.Insert(r.project, zone, machine("a")).RequestId(id).Do()
	if err != nil || op.Status != "PENDING" {
		t.Fatalf("%+v, %v; want PENDING", op, err)
	}
	if _, err := r.Service.Instances.Get(r.project, zone, "a").Do(); err == nil {
		t.Error("it shows while its insert is PENDING")
	}
	again, err := r.Service.Instances.Insert(r.project, zone, machine("a")).RequestId(id).Do()
	if err != nil || again.Name != op.Name {
		t.Errorf("the same request again: %+v, %v; want %s", again, err, op.Name)
	}
	seen := map[string]bool{}
	for end := time.Now().Add(30 * time.Second); op.Status != "DONE" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if op, err = r.ZoneOperations.Get(r.project, zone, op.Name).Do(); err != nil {
			t.Fatal(err)
		}
		seen[op.Status] = true
		if vm, err := r.Service.Instances.Get(r.project, zone, "a").Do(); err == nil {
			seen[vm.Status] = true
		}
	}
	if !seen["RUNNING"] || !seen["DONE"] || !seen["PROVISIONING"] {
		t.Errorf("seen on the way: %v", seen)
	}
	again, err = r.Service.Instances.Insert(r.project, zone, machine("a")).RequestId(id).Do()
	if err != nil || again.Name != op.Name || again.Status != "DONE" {
		t.Errorf("the same request later: %+v, %v", again, err)
	}
	mend := r.Exhaust(zone)
	if op := r.insert(t, machine("b")); op.Error == nil || op.Error.Errors[0].Code != "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" || op.HttpErrorStatusCode == 0 {
		t.Errorf("exhausted: %+v", op)
	}
	mend()
	if n := len(r.Server.Instances(zone)); n != 1 {
		t.Errorf("%d instances; the one that failed leaves nothing", n)
	}
}

// Pages are walked to the end, and none is shown twice.
func TestPages(t *testing.T) {
	r := newRig(t, gcefake.Options{PageSize: 2})
	for i := range 5 {
		r.insert(t, machine(fmt.Sprint("m", i)))
	}
	var names []string
	pages := 0
	err := r.Service.Instances.List(r.project, zone).Filter("name eq m.*").Pages(t.Context(), func(l *compute.InstanceList) error {
		pages++
		for _, vm := range l.Items {
			names = append(names, vm.Name)
		}
		return nil
	})
	if err != nil || pages != 3 || fmt.Sprint(names) != "[m0 m1 m2 m3 m4]" {
		t.Errorf("%d pages: %v, %v", pages, names, err)
	}
}

// A key that was revoked gets no token, and its tokens are worth nothing.
func TestRevokedKey(t *testing.T) {
	r := newRig(t, gcefake.Options{})
	if _, err := r.Service.Zones.Get(r.project, zone).Do(); err != nil {
		t.Fatal(err)
	}
	old := r.Key()
	r.RevokeKey()
	if status, _ := codeOf(func() error { _, err := r.Service.Zones.Get(r.project, zone).Do(); return err }()); status != 401 {
		t.Errorf("a token of a revoked key: %d; want 401", status)
	}
	for what, key := range map[string][]byte{"old": old, "new": r.Key()} {
		conf, err := google.JWTConfigFromJSON(key, compute.ComputeScope)
		if err != nil {
			t.Fatal(err)
		}
		base := &http.Transport{}
		_, err = conf.TokenSource(context.WithValue(t.Context(), oauth2.HTTPClient, &http.Client{Transport: base})).Token()
		base.CloseIdleConnections()
		if (err == nil) != (what == "new") {
			t.Errorf("%s key: %v", what, err)
		}
	}
}

// An instance's proxy is a process of its own: traffic leaves by its address,
// plain and through a tunnel, and it ends with the instance.
func TestProxyProcess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string][]string{"process": {self, proxyArg}, "in process": nil} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, gcefake.Options{Command: command})
			r.insert(t, machine("a"))
			vm, err := r.Service.Instances.Get(r.project, zone, "a").Do()
			if err != nil {
				t.Fatal(err)
			}
			at := vm.NetworkInterfaces[0].AccessConfigs[0].NatIP
			origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				host, _, _ := net.SplitHostPort(r.RemoteAddr)
				_, _ = io.WriteString(w, host)
			}))
			defer origin.Close()
			for _, by := range []string{at, vm.NetworkInterfaces[0].NetworkIP} {
				tr := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: net.JoinHostPort(by, "43128")})}
				resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Get(origin.URL)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				tr.CloseIdleConnections()
				if string(body) != at {
					t.Errorf("by %s it leaves as %s; want %s", by, body, at)
				}
			}
			if err := r.Preempt(zone, "a"); err != nil {
				t.Fatal(err)
			}
			if c, err := net.DialTimeout("tcp", net.JoinHostPort(at, "43128"), 5*time.Second); err == nil {
				_ = c.Close()
				t.Error("its proxy outlives it")
			}
		})
	}
}
