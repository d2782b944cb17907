package gcefake

import (
	"net/http"
	"strings"

	compute "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
)

func getProject(s *Server, _ *http.Request, _ *zone) (any, *googleapi.Error) {
	return &compute.Project{Kind: "compute#project", Name: s.o.Project, SelfLink: home + "projects/" + s.o.Project}, nil
}

func getRegion(s *Server, r *http.Request, _ *zone) (any, *googleapi.Error) {
	name := r.PathValue("region")
	quotas, ok := s.quotas[name]
	if !ok {
		return nil, notFound("projects/" + s.o.Project + "/regions/" + name)
	}
	out := &compute.Region{Kind: "compute#region", Name: name, Status: "UP", SelfLink: home + "projects/" + s.o.Project + "/regions/" + name}
	for metric, limit := range quotas {
		out.Quotas = append(out.Quotas, &compute.Quota{Metric: metric, Limit: limit, Usage: s.usage(name, metric)})
	}
	return out, nil
}

func getZone(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	name, status := r.PathValue("zone"), "UP"
	if s.faults.down[name] {
		status = "DOWN"
	}
	return &compute.Zone{
		Kind: "compute#zone", Name: name, Status: status,
		Region:   home + "projects/" + s.o.Project + "/regions/" + z.region,
		SelfLink: home + "projects/" + s.o.Project + "/zones/" + name,
	}, nil
}

func getMachineType(s *Server, r *http.Request, _ *zone) (any, *googleapi.Error) {
	if !s.types[r.PathValue("name")] {
		return nil, s.absent(r, "machineTypes")
	}
	return &compute.MachineType{Kind: "compute#machineType", Name: r.PathValue("name"), Zone: r.PathValue("zone")}, nil
}

func getDisk(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	d := z.disks[r.PathValue("name")]
	if d == nil {
		return nil, s.absent(r, "disks")
	}
	one := *d
	return &one, nil
}

func listDisks(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	lets, p := filter(r)
	if p != nil {
		return nil, p
	}
	var names []string
	for name, d := range z.disks {
		if lets(name, "", d.Labels) {
			names = append(names, name)
		}
	}
	out := &compute.DiskList{Kind: "compute#diskList"}
	names, out.NextPageToken = s.page(r, names)
	for _, name := range names {
		one := *z.disks[name]
		out.Items = append(out.Items, &one)
	}
	return out, nil
}

func deleteDisk(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	name, at := r.PathValue("name"), r.PathValue("zone")
	d := z.disks[name]
	if d == nil {
		return nil, s.absent(r, "disks")
	}
	if len(d.Users) > 0 {
		return nil, problem(http.StatusBadRequest, "resourceInUseByAnotherResource", "The disk resource '%s' is already being used by '%s'", name, d.Users[0])
	}
	return s.begin(r, "deleteDisk", s.link(at, "disks", name), d.Id, nil, func() *failure {
		if z.disks[name] == d {
			delete(z.disks, name)
		}
		return nil
	})
}

func listGroups(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	lets, p := filter(r)
	if p != nil {
		return nil, p
	}
	var names []string
	for name := range z.groups {
		if lets(name, "", nil) && !s.faults.ungrouped[r.PathValue("zone")] {
			names = append(names, name)
		}
	}
	out := &compute.InstanceGroupList{Kind: "compute#instanceGroupList"}
	names, out.NextPageToken = s.page(r, names)
	for _, name := range names {
		one := *z.groups[name]
		out.Items = append(out.Items, &one)
	}
	return out, nil
}

func checkPorts(ports []*compute.NamedPort) *googleapi.Error {
	for _, p := range ports {
		if !nameForm.MatchString(p.Name) || p.Port < 1 || p.Port > 65535 {
			return invalid("namedPorts", p.Name, "Must be a match of regex '[a-z]([-a-z0-9]*[a-z0-9])?', and a port.")
		}
	}
	return nil
}

func insertGroup(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	var g compute.InstanceGroup
	if p := decode(r, &g); p != nil {
		return nil, p
	}
	name, at := g.Name, r.PathValue("zone")
	if !nameForm.MatchString(name) || len(g.Description) > maxDescription {
		return nil, invalid("name", name, "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
	}
	if p := checkPorts(g.NamedPorts); p != nil {
		return nil, p
	}
	target := s.link(at, "instanceGroups", name)
	if z.groups[name] != nil || s.pending(target) {
		return nil, problem(http.StatusConflict, "alreadyExists", "The resource 'projects/%s/zones/%s/instanceGroups/%s' already exists", s.o.Project, at, name)
	}
	g.Id, g.Kind, g.CreationTimestamp, g.SelfLink = s.id(), "compute#instanceGroup", stamp(), target
	return s.begin(r, "insert", target, g.Id, func() { z.groups[name] = &g }, nil)
}

func deleteGroup(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	name := r.PathValue("name")
	g := z.groups[name]
	if g == nil {
		return nil, s.absent(r, "instanceGroups")
	}
	return s.begin(r, "deleteGroup", s.link(r.PathValue("zone"), "instanceGroups", name), g.Id, nil, func() *failure {
		if z.groups[name] == g {
			delete(z.groups, name)
		}
		return nil
	})
}

func setNamedPorts(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	var req compute.InstanceGroupsSetNamedPortsRequest
	if p := decode(r, &req); p != nil {
		return nil, p
	}
	name := r.PathValue("name")
	g := z.groups[name]
	if g == nil {
		return nil, s.absent(r, "instanceGroups")
	}
	if p := checkPorts(req.NamedPorts); p != nil {
		return nil, p
	}
	target := strings.TrimSuffix(s.link(r.PathValue("zone"), "instanceGroups", name), "/")
	return s.begin(r, "setNamedPorts", target, g.Id, nil, func() *failure {
		if z.groups[name] == g {
			one := *g
			one.NamedPorts = req.NamedPorts
			*g = one
		}
		return nil
	})
}
