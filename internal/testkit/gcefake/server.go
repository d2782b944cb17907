package gcefake

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	compute "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
)

// Options are what a Server is made of; the zero value is one project with two
// zones in one region and one in another.
type Options struct {
	// Project is the one project there is; default "crawl-fleet".
	Project string
	// Zones are the regions of the zones, by zone.
	Zones map[string]string
	// Command starts an instance's proxy, whose main function is [Proxy]; with
	// none a proxy runs in this process.
	Command []string
	// Port is where instances' proxies listen; default 43128.
	Port int
	// Delay is how long an operation stays PENDING, and again RUNNING; default
	// 2 ms.
	Delay time.Duration
	// PageSize bounds the pages of lists; default 500, the API's own.
	PageSize int
}

// Server is the fake. It is safe for concurrent use.
type Server struct {
	o    Options
	http *httptest.Server
	done chan struct{}
	// work are operations that run.
	work sync.WaitGroup

	mu        sync.Mutex
	zones     map[string]*zone
	next      uint64
	addresses int
	images    map[string]int64
	accounts  map[string]bool
	types     map[string]bool
	ops       map[string]*operation
	requests  map[string]string
	quotas    map[string]map[string]float64
	calls     map[string]int
	refused   int
	keys      keyring
	faults    faults
}

// zone is one zone's resources by name.
type zone struct {
	region    string
	instances map[string]*machine
	disks     map[string]*compute.Disk
	groups    map[string]*compute.InstanceGroup
}

// New starts a server.
func New(o Options) (*Server, error) {
	if o.Project == "" {
		o.Project = "crawl-fleet"
	}
	if o.Zones == nil {
		o.Zones = map[string]string{"europe-west1-b": "europe-west1", "europe-west1-c": "europe-west1", "us-east1-b": "us-east1"}
	}
	if o.Port == 0 {
		o.Port = 43128
	}
	if o.Delay == 0 {
		o.Delay = 2 * time.Millisecond
	}
	if o.PageSize == 0 {
		o.PageSize = 500
	}
	s := &Server{
		o: o, done: make(chan struct{}), zones: map[string]*zone{}, next: 1 << 40,
		images: map[string]int64{
			"projects/debian-cloud/global/images/family/debian-12":                10,
			"projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64": 10,
			"projects/" + o.Project + "/global/images/squid-7":                    10,
		},
		accounts: map[string]bool{"proxy@" + o.Project + ".iam.gserviceaccount.com": true},
		types:    map[string]bool{},
		ops:      map[string]*operation{}, requests: map[string]string{}, quotas: map[string]map[string]float64{}, calls: map[string]int{},
	}
	var start [2]byte
	_, _ = rand.Read(start[:])
	s.addresses = int(start[0])<<8 + int(start[1])
	for _, t := range []string{"e2-micro", "e2-small", "e2-medium", "e2-standard-2", "e2-standard-4", "e2-standard-8", "e2-standard-16", "e2-standard-32"} {
		s.types[t] = true
	}
	for name, region := range o.Zones {
		s.zones[name] = &zone{region: region, instances: map[string]*machine{}, disks: map[string]*compute.Disk{}, groups: map[string]*compute.InstanceGroup{}}
		s.quotas[region] = map[string]float64{"INSTANCES": 1000, "CPUS": 10000, "IN_USE_ADDRESSES": 1000}
	}
	if err := s.keys.open(); err != nil {
		return nil, err
	}
	s.faults.init()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", s.token)
	for _, r := range s.routes() {
		mux.HandleFunc(r.pattern, s.handler(r))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, nil, problem(http.StatusNotFound, "notFound", "the fake does not know %s %s", r.Method, r.URL.Path))
	})
	s.http = httptest.NewServer(mux)
	return s, nil
}

// Close ends the server, its operations and the proxies of all instances.
func (s *Server) Close() {
	s.mu.Lock()
	s.faults.mend()
	s.mu.Unlock()
	close(s.done)
	s.http.CloseClientConnections()
	s.http.Close()
	s.work.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, z := range s.zones {
		for _, m := range z.instances {
			m.halt()
		}
	}
}

// Endpoint is the address of the API, for clients.
func (s *Server) Endpoint() string { return s.http.URL + base }

// Project is the name of the project.
func (s *Server) Project() string { return s.o.Project }

// Zones are the zones' names, sorted.
func (s *Server) Zones() []string {
	var out []string
	for name := range s.o.Zones {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

const (
	base = "/compute/v1/"
	// home is what links begin with, whatever address clients use.
	home = "https://www.googleapis.com/compute/v1/"
)

// route is one call of the API.
type route struct {
	pattern string
	// name is the API's own of the method, permission what it needs.
	name, permission string
	handle           func(s *Server, r *http.Request, z *zone) (any, *googleapi.Error)
	// outside calls run without the server's lock: they wait.
	outside bool
}

func (s *Server) routes() []route {
	const project, inZone = base + "projects/{project}", base + "projects/{project}/zones/{zone}"
	all := []route{
		{"GET " + project, "projects.get", "compute.projects.get", getProject, false},
		{"GET " + project + "/regions/{region}", "regions.get", "compute.regions.get", getRegion, false},
		{"GET " + inZone, "zones.get", "compute.zones.get", getZone, false},
		{"GET " + inZone + "/machineTypes/{name}", "machineTypes.get", "compute.machineTypes.get", getMachineType, false},
		{"GET " + inZone + "/instances", "instances.list", "compute.instances.list", listInstances, false},
		{"POST " + inZone + "/instances", "instances.insert", "compute.instances.create", insertInstance, false},
		{"GET " + inZone + "/instances/{name}", "instances.get", "compute.instances.get", getInstance, false},
		{"DELETE " + inZone + "/instances/{name}", "instances.delete", "compute.instances.delete", deleteInstance, false},
		{"POST " + inZone + "/instances/{name}/start", "instances.start", "compute.instances.start", startInstance, false},
		{"POST " + inZone + "/instances/{name}/resume", "instances.resume", "compute.instances.resume", startInstance, false},
		{"GET " + inZone + "/disks", "disks.list", "compute.disks.list", listDisks, false},
		{"GET " + inZone + "/disks/{name}", "disks.get", "compute.disks.get", getDisk, false},
		{"DELETE " + inZone + "/disks/{name}", "disks.delete", "compute.disks.delete", deleteDisk, false},
		{"GET " + inZone + "/instanceGroups", "instanceGroups.list", "compute.instanceGroups.list", listGroups, false},
		{"POST " + inZone + "/instanceGroups", "instanceGroups.insert", "compute.instanceGroups.create", insertGroup, false},
		{"DELETE " + inZone + "/instanceGroups/{name}", "instanceGroups.delete", "compute.instanceGroups.delete", deleteGroup, false},
		{"POST " + inZone + "/instanceGroups/{name}/setNamedPorts", "instanceGroups.setNamedPorts", "compute.instanceGroups.update", setNamedPorts, false},
		{"GET " + inZone + "/operations", "zoneOperations.list", "compute.zoneOperations.list", listOperations, false},
		{"GET " + inZone + "/operations/{name}", "zoneOperations.get", "compute.zoneOperations.get", getOperation, false},
		{"POST " + inZone + "/operations/{name}/wait", "zoneOperations.wait", "compute.zoneOperations.get", waitOperation, true},
	}
	return all
}

// handler is what all calls have in common.
func (s *Server) handler(rt route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// Read before anything else, so that a client that goes away is noticed.
		body, err := io.ReadAll(io.LimitReader(r.Body, 8<<20))
		if err != nil {
			return
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		if p := s.admit(rt, r); p != nil {
			s.answer(w, nil, p)
			return
		}
		s.mu.Lock()
		elsewhere := s.faults.elsewhere
		s.mu.Unlock()
		if elsewhere != "" {
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
			return
		}
		zoneName := r.PathValue("zone")
		if !s.passes(zoneName, r) {
			return
		}
		var z *zone
		var out any
		var p *googleapi.Error
		s.mu.Lock()
		if zoneName != "" {
			z = s.zones[zoneName]
		}
		switch {
		case zoneName != "" && s.faults.broken[zoneName]:
			p = problem(http.StatusServiceUnavailable, "backendError", "Backend Error")
		case zoneName != "" && z == nil && rt.name == "zones.get":
			p = notFound("projects/" + s.o.Project + "/zones/" + zoneName)
		case zoneName != "" && z == nil:
			p = problem(http.StatusBadRequest, "invalid", "Invalid value for field 'zone': '%s'. Unknown zone.", zoneName)
		case s.faults.next[rt.name] != nil:
			p = s.faults.next[rt.name]
			delete(s.faults.next, rt.name)
		case !rt.outside:
			out, p = rt.handle(s, r, z)
		}
		lost := s.faults.lost[rt.name] > 0
		if lost {
			s.faults.lost[rt.name]--
		}
		s.mu.Unlock()
		if rt.outside && p == nil {
			out, p = rt.handle(s, r, z)
		}
		if lost {
			panic(http.ErrAbortHandler) // it was done, and nobody hears of it
		}
		s.answer(w, out, p)
	}
}

// admit is what stands before every call: credentials, project, permissions and
// rate.
func (s *Server) admit(rt route, r *http.Request) *googleapi.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[rt.name]++
	if !s.keys.knows(r.Header.Get("Authorization")) {
		return problem(http.StatusUnauthorized, "authError", "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential.")
	}
	if project := r.PathValue("project"); project != s.o.Project || s.faults.hidden {
		return notFound("projects/" + project)
	}
	if s.faults.disabled {
		return problem(http.StatusForbidden, "accessNotConfigured", "Compute Engine API has not been used in project %s before or it is disabled. Enable it by visiting https://console.developers.google.com/apis/api/compute.googleapis.com/overview?project=%s then retry.", s.o.Project, s.o.Project)
	}
	if p := s.forbidden(rt.permission); p != nil {
		return p
	}
	if l := s.faults.limit; l != nil && !l.Allow() {
		s.refused++
		if s.refused%2 == 0 {
			return problem(http.StatusTooManyRequests, "rateLimitExceeded", "Too many requests")
		}
		return problem(http.StatusForbidden, "rateLimitExceeded", "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service 'compute.googleapis.com'.")
	}
	return nil
}

// passes waits while the zone is mute, and reports whether an answer shall be
// given at all.
func (s *Server) passes(zone string, r *http.Request) bool {
	s.mu.Lock()
	mute := s.faults.mute[zone]
	s.mu.Unlock()
	if mute == nil {
		return true
	}
	select {
	case <-mute:
		return r.Context().Err() == nil
	case <-r.Context().Done():
		return false
	case <-s.done:
		return false
	}
}

func (s *Server) answer(w http.ResponseWriter, out any, p *googleapi.Error) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	if p != nil {
		w.WriteHeader(p.Code)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": p.Code, "message": p.Message, "errors": p.Errors}})
		return
	}
	_ = json.NewEncoder(w).Encode(out)
}

func problem(status int, reason, format string, args ...any) *googleapi.Error {
	text := fmt.Sprintf(format, args...)
	return &googleapi.Error{Code: status, Message: text, Errors: []googleapi.ErrorItem{{Reason: reason, Message: text}}}
}

func notFound(resource string) *googleapi.Error {
	return problem(http.StatusNotFound, "notFound", "The resource '%s' was not found", resource)
}

// decode reads a request's body into one of the client's structs; what the
// struct does not have is refused.
func decode(r *http.Request, into any) *googleapi.Error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return problem(http.StatusBadRequest, "parseError", "Invalid JSON payload received. %v", err)
	}
	return nil
}

// id returns a number that no other resource has.
func (s *Server) id() uint64 { s.next++; return s.next }

// link is a resource's own.
func (s *Server) link(zone, kind, name string) string {
	return home + "projects/" + s.o.Project + "/zones/" + zone + "/" + kind + "/" + name
}

func stamp() string { return time.Now().Format("2006-01-02T15:04:05.000-07:00") }

var (
	byLabel = regexp.MustCompile(`^labels\.([a-z][a-z0-9_]*) = ([a-z0-9_-]+)$`)
	byField = regexp.MustCompile(`^(name|targetLink) eq ([^ "']+)$`)
)

// filter returns what a list's filter lets through. It knows the two forms that
// the provider uses, and refuses all others.
func filter(r *http.Request) (func(name, target string, labels map[string]string) bool, *googleapi.Error) {
	text := r.URL.Query().Get("filter")
	if text == "" {
		return func(string, string, map[string]string) bool { return true }, nil
	}
	if m := byLabel.FindStringSubmatch(text); m != nil {
		return func(_, _ string, labels map[string]string) bool { return labels[m[1]] == m[2] }, nil
	}
	if m := byField.FindStringSubmatch(text); m != nil {
		if form, err := regexp.Compile("^(?:" + m[2] + ")$"); err == nil {
			return func(name, target string, _ map[string]string) bool {
				if m[1] == "name" {
					return form.MatchString(name)
				}
				return form.MatchString(target)
			}, nil
		}
	}
	return nil, problem(http.StatusBadRequest, "invalid", "Invalid value for field 'filter': '%s'. Invalid list filter expression.", text)
}

// page cuts a sorted list of names to the page that was asked for.
func (s *Server) page(r *http.Request, names []string) (cut []string, next string) {
	slices.Sort(names)
	size := s.o.PageSize
	var asked int
	if _, err := fmt.Sscan(r.URL.Query().Get("maxResults"), &asked); err == nil && asked > 0 {
		size = min(size, asked)
	}
	if after := r.URL.Query().Get("pageToken"); after != "" {
		i, found := slices.BinarySearch(names, after)
		if found {
			i++
		}
		names = names[i:]
	}
	if len(names) > size {
		return names[:size], names[size-1]
	}
	return names, ""
}

// newLimiter is the API's own rate limit.
func newLimiter(perSecond float64, burst int) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(perSecond), burst)
}
