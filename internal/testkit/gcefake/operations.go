package gcefake

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	compute "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
)

// operation is one change under way.
type operation struct {
	op   compute.Operation
	done chan struct{}
}

// failure is an error inside an operation.
type failure struct {
	code, message string
	// http is the HTTP status that goes with it, 0 for the code's own.
	http int
}

// status is the HTTP status that an operation shows for its error.
func (f *failure) status() (int64, string) {
	switch {
	case f.http != 0:
		return int64(f.http), strings.ToUpper(http.StatusText(f.http))
	case strings.HasPrefix(f.code, "ZONE_RESOURCE_POOL_EXHAUSTED"):
		return http.StatusServiceUnavailable, "SERVICE UNAVAILABLE"
	case f.code == "QUOTA_EXCEEDED":
		return http.StatusForbidden, "FORBIDDEN"
	case f.code == "RESOURCE_OPERATION_RATE_EXCEEDED":
		return http.StatusForbidden, "FORBIDDEN"
	case f.code == "RESOURCE_NOT_FOUND":
		return http.StatusNotFound, "NOT FOUND"
	case f.code == "RESOURCE_ALREADY_EXISTS":
		return http.StatusConflict, "CONFLICT"
	case f.code == "INTERNAL_ERROR":
		return http.StatusInternalServerError, "INTERNAL ERROR"
	}
	return http.StatusBadRequest, "BAD REQUEST"
}

var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// begin starts an operation on a resource: begin is run when it becomes RUNNING
// and finish when it becomes DONE, both under the server's lock. A request with
// an id that was seen before gets the operation of that time.
func (s *Server) begin(r *http.Request, kind, target string, targetID uint64, begin func(), finish func() *failure) (any, *googleapi.Error) {
	request := r.URL.Query().Get("requestId")
	if request != "" {
		if !uuidForm.MatchString(request) {
			return nil, problem(http.StatusBadRequest, "invalid", "Invalid value for field 'requestId': '%s'.", request)
		}
		if name, ok := s.requests[request]; ok {
			op := s.ops[name].op
			return &op, nil
		}
	}
	zone := r.PathValue("zone")
	id := s.id()
	o := &operation{done: make(chan struct{}), op: compute.Operation{
		Id: id, Name: fmt.Sprintf("operation-%d", id), Kind: "compute#operation", OperationType: kind, Status: "PENDING",
		TargetLink: target, TargetId: targetID, InsertTime: stamp(), Zone: home + "projects/" + s.o.Project + "/zones/" + zone,
		SelfLink: s.link(zone, "operations", fmt.Sprintf("operation-%d", id)), User: s.keys.email(s.o.Project),
	}}
	s.ops[o.op.Name] = o
	if request != "" {
		s.requests[request] = o.op.Name
	}
	fail := s.faults.inside[kind]
	if fail != nil {
		delete(s.faults.inside, kind)
	}
	running := func() {
		o.op.Status, o.op.StartTime = "RUNNING", stamp()
		if fail == nil && begin != nil {
			begin()
		}
	}
	ended := func() {
		f := fail
		if f == nil && finish != nil {
			f = finish()
		}
		o.op.Status, o.op.Progress, o.op.EndTime = "DONE", 100, stamp()
		if f != nil {
			o.op.HttpErrorStatusCode, o.op.HttpErrorMessage = f.status()
			o.op.Error = &compute.OperationError{Errors: []*compute.OperationErrorErrors{{Code: f.code, Message: f.message}}}
		}
		close(o.done)
	}
	if s.faults.instant {
		running()
		ended()
		op := o.op
		return &op, nil
	}
	frozen := s.faults.frozen
	s.work.Go(func() {
		if !s.thawed(frozen) || !s.pause(s.o.Delay) {
			return
		}
		s.mu.Lock()
		running()
		s.mu.Unlock()
		if !s.pause(s.o.Delay) {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		ended()
	})
	op := o.op
	return &op, nil
}

func (s *Server) thawed(frozen chan struct{}) bool {
	if frozen == nil {
		return true
	}
	select {
	case <-frozen:
		return true
	case <-s.done:
		return false
	}
}

func (s *Server) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.done:
		return false
	}
}

func getOperation(s *Server, r *http.Request, _ *zone) (any, *googleapi.Error) {
	o, ok := s.ops[r.PathValue("name")]
	if !ok {
		return nil, notFound("projects/" + s.o.Project + "/zones/" + r.PathValue("zone") + "/operations/" + r.PathValue("name"))
	}
	op := o.op
	return &op, nil
}

// waitOperation answers when the operation is done, or after a while; a hasty
// one at once.
func waitOperation(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	s.mu.Lock()
	o, ok := s.ops[r.PathValue("name")]
	hasty := s.faults.hasty
	s.mu.Unlock()
	if ok && !hasty {
		limit := time.NewTimer(time.Minute)
		defer limit.Stop()
		select {
		case <-o.done:
		case <-limit.C:
		case <-r.Context().Done():
		case <-s.done:
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return getOperation(s, r, z)
}

func listOperations(s *Server, r *http.Request, _ *zone) (any, *googleapi.Error) {
	lets, p := filter(r)
	if p != nil {
		return nil, p
	}
	where := home + "projects/" + s.o.Project + "/zones/" + r.PathValue("zone")
	var names []string
	for name, o := range s.ops {
		if o.op.Zone == where && lets(name, o.op.TargetLink, nil) {
			names = append(names, name)
		}
	}
	out := &compute.OperationList{Kind: "compute#operationList"}
	names, out.NextPageToken = s.page(r, names)
	for _, name := range names {
		op := s.ops[name].op
		out.Items = append(out.Items, &op)
	}
	return out, nil
}
