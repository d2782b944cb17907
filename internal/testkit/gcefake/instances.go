package gcefake

import (
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	compute "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
)

// machine is one instance and its proxy, when it runs.
type machine struct {
	in    compute.Instance
	proxy *running
}

// halt ends the machine's proxy.
func (m *machine) halt() {
	if m.proxy != nil {
		m.proxy.end()
		m.proxy = nil
	}
	for _, n := range m.in.NetworkInterfaces {
		for _, a := range n.AccessConfigs {
			a.NatIP = "" // an ephemeral address goes with the run
		}
	}
}

var (
	nameForm  = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKey  = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelForm = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
	keyForm   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)
)

const (
	maxValue       = 256 << 10
	maxMetadata    = 512 << 10
	maxDescription = 2048
	maxLabels      = 64
)

func invalid(field, value, why string) *googleapi.Error {
	return problem(http.StatusBadRequest, "invalid", "Invalid value for field 'resource.%s': '%s'. %s", field, value, why)
}

func checkLabels(field string, labels map[string]string) *googleapi.Error {
	if len(labels) > maxLabels {
		return invalid(field, "", "Too many labels.")
	}
	for k, v := range labels {
		if !labelKey.MatchString(k) || !labelForm.MatchString(v) {
			return invalid(field, k+"="+v, "Label keys and values must match [a-z0-9_-]{0,63}.")
		}
	}
	return nil
}

// check refuses what the API refuses before it begins an operation.
func (s *Server) check(zone string, in *compute.Instance) *googleapi.Error {
	if !nameForm.MatchString(in.Name) {
		return invalid("name", in.Name, "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
	}
	if len(in.Description) > maxDescription {
		return invalid("description", "", "Must be at most 2048 characters.")
	}
	if p := checkLabels("labels", in.Labels); p != nil {
		return p
	}
	if in.Metadata != nil {
		total := 0
		for i, item := range in.Metadata.Items {
			if !keyForm.MatchString(item.Key) || item.Value == nil {
				return invalid("metadata.items["+string(rune('0'+i))+"].key", item.Key, "Must be a match of regex '[a-zA-Z0-9-_]{1,128}'")
			}
			if len(*item.Value) > maxValue {
				return invalid("metadata.items["+string(rune('0'+i))+"].value", *item.Value, "Value is too large: maximum size 262144 character(s).")
			}
			total += len(item.Key) + len(*item.Value)
		}
		if total > maxMetadata {
			return invalid("metadata", "", "Metadata has exceeded the size limit.")
		}
	}
	prefix := "zones/" + zone + "/"
	kind, ok := strings.CutPrefix(in.MachineType, prefix+"machineTypes/")
	if !ok || !s.types[kind] {
		return invalid("machineType", in.MachineType, "Machine type with name '"+kind+"' does not exist in zone '"+zone+"'.")
	}
	if len(in.Disks) == 0 || !in.Disks[0].Boot || in.Disks[0].InitializeParams == nil {
		return invalid("disks", "", "At least one boot disk is needed.")
	}
	d := in.Disks[0].InitializeParams
	size, ok := s.images[d.SourceImage]
	if !ok {
		if !strings.HasPrefix(d.SourceImage, "projects/") {
			return invalid("disks[0].initializeParams.sourceImage", d.SourceImage, "The URL is malformed.")
		}
		return notFound(d.SourceImage)
	}
	if t, ok := strings.CutPrefix(d.DiskType, prefix+"diskTypes/"); !ok || t != "pd-balanced" && t != "pd-standard" && t != "pd-ssd" {
		return invalid("disks[0].initializeParams.diskType", d.DiskType, "The referenced diskType resource cannot be found.")
	}
	if d.DiskSizeGb != 0 && d.DiskSizeGb < size {
		return invalid("disks[0].initializeParams.diskSizeGb", "", "Requested disk size cannot be smaller than the image size (10 GB)")
	}
	if p := checkLabels("disks[0].initializeParams.labels", d.Labels); p != nil {
		return p
	}
	if len(in.NetworkInterfaces) != 1 {
		return invalid("networkInterfaces", "", "At least one network interface is required.")
	}
	n := in.NetworkInterfaces[0]
	if n.Network != "global/networks/default" {
		return invalid("networkInterfaces[0].network", n.Network, "The referenced network resource cannot be found.")
	}
	if n.Subnetwork != "" && !strings.HasSuffix(n.Subnetwork, "/subnetworks/default") {
		return invalid("networkInterfaces[0].subnetwork", n.Subnetwork, "The referenced subnetwork resource cannot be found.")
	}
	for _, a := range in.ServiceAccounts {
		if !s.accounts[a.Email] {
			return problem(http.StatusBadRequest, "badRequest", "The user does not have access to service account '%s'.  User: '%s'.  Ask a project owner to grant you the iam.serviceAccountUser role on the service account", a.Email, s.keys.email(s.o.Project))
		}
	}
	return nil
}

// needs are the permissions that making an instance takes beside its own.
func needs(in *compute.Instance) []string {
	out := []string{"compute.disks.create", "compute.subnetworks.use"}
	add := func(is bool, permission string) {
		if is {
			out = append(out, permission)
		}
	}
	add(len(in.Labels) > 0, "compute.instances.setLabels")
	add(len(in.Disks[0].InitializeParams.Labels) > 0, "compute.disks.setLabels")
	add(in.Metadata != nil, "compute.instances.setMetadata")
	add(in.Tags != nil, "compute.instances.setTags")
	add(len(in.ServiceAccounts) > 0, "compute.instances.setServiceAccount")
	add(len(in.ServiceAccounts) > 0, "iam.serviceAccounts.actAs")
	add(len(in.NetworkInterfaces[0].AccessConfigs) > 0, "compute.subnetworks.useExternalIp")
	image := in.Disks[0].InitializeParams.SourceImage
	public := strings.HasPrefix(image, "projects/debian-cloud/") || strings.HasPrefix(image, "projects/ubuntu-os-cloud/")
	add(!public, "compute.images.useReadOnly")
	return out
}

func insertInstance(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	var in compute.Instance
	if p := decode(r, &in); p != nil {
		return nil, p
	}
	name, at := in.Name, r.PathValue("zone")
	if op, ok := s.requests[r.URL.Query().Get("requestId")]; ok {
		out := s.ops[op].op
		return &out, nil
	}
	if p := s.check(at, &in); p != nil {
		return nil, p
	}
	if p := s.forbidden(needs(&in)...); p != nil {
		return nil, p
	}
	target := s.link(at, "instances", name)
	if z.instances[name] != nil || s.pending(target) {
		return nil, problem(http.StatusConflict, "alreadyExists", "The resource 'projects/%s/zones/%s/instances/%s' already exists", s.o.Project, at, name)
	}
	if s.faults.clashing && z.disks[name] != nil {
		return nil, problem(http.StatusConflict, "alreadyExists", "The resource 'projects/%s/zones/%s/disks/%s' already exists", s.o.Project, at, name)
	}
	for _, metric := range []string{"INSTANCES", "CPUS", "PREEMPTIBLE_CPUS", "IN_USE_ADDRESSES"} {
		limit, bounded := s.quotas[z.region][metric]
		if need := s.takes(&in)[metric]; bounded && need > 0 && s.usage(z.region, metric)+need > limit {
			return nil, problem(http.StatusForbidden, "quotaExceeded", "Quota '%s' exceeded.  Limit: %.1f in region %s.", metric, limit, z.region)
		}
	}
	var clash *failure
	m := s.machine(at, in)
	return s.begin(r, "insert", target, m.in.Id, func() {
		if z.disks[name] != nil {
			clash = &failure{code: "RESOURCE_ALREADY_EXISTS", message: "The resource 'projects/" + s.o.Project + "/zones/" + at + "/disks/" + name + "' already exists"}
			return
		}
		m.in.Status = "PROVISIONING"
		z.instances[name] = m
		z.disks[name] = s.disk(at, name, in.Disks[0].InitializeParams.Labels, target)
	}, func() *failure {
		switch {
		case clash != nil:
			return clash
		case z.instances[name] != m:
			// Somebody removed it meanwhile.
			return &failure{code: "OPERATION_CANCELED_BY_USER", message: "The operation was canceled: instance '" + name + "' was deleted.", http: http.StatusConflict}
		case s.faults.exhausted[at]:
			s.drop(z, name)
			return exhausted(s, at)
		}
		return s.launch(m)
	})
}

func exhausted(s *Server, at string) *failure {
	return &failure{code: "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", message: "The zone 'projects/" + s.o.Project + "/zones/" + at + "' does not have enough resources available to fulfill the request.  '(resource type:compute)'."}
}

func (s *Server) launch(m *machine) *failure {
	if err := s.run(m); err != nil {
		return &failure{code: "INTERNAL_ERROR", message: err.Error()}
	}
	return nil
}

// run starts the machine's proxy.
func (s *Server) run(m *machine) error {
	if m.proxy == nil {
		proxy, err := s.start(m)
		if err != nil {
			return err
		}
		m.proxy = proxy
	}
	m.in.Status, m.in.LastStartTimestamp = "RUNNING", stamp()
	return nil
}

// pending reports whether an insert of the resource is under way.
func (s *Server) pending(target string) bool {
	for _, o := range s.ops {
		if o.op.TargetLink == target && o.op.OperationType == "insert" && o.op.Status != "DONE" {
			return true
		}
	}
	return false
}

// takes is what an instance takes of quotas. Spot machines take CPUs of their
// own where the region has such a quota.
func (s *Server) takes(in *compute.Instance) map[string]float64 {
	cpus := 2.0
	if i := strings.LastIndex(in.MachineType, "-standard-"); i > 0 {
		cpus, _ = strconv.ParseFloat(in.MachineType[i+len("-standard-"):], 64)
	}
	out := map[string]float64{"INSTANCES": 1}
	if in.Scheduling != nil && in.Scheduling.ProvisioningModel == "SPOT" {
		out["PREEMPTIBLE_CPUS"] = cpus
	} else {
		out["CPUS"] = cpus
	}
	for _, n := range in.NetworkInterfaces {
		out["IN_USE_ADDRESSES"] += float64(len(n.AccessConfigs))
	}
	return out
}

func (s *Server) usage(region, metric string) float64 {
	var n float64
	for _, z := range s.zones {
		if z.region != region {
			continue
		}
		for _, m := range z.instances {
			n += s.takes(&m.in)[metric]
		}
	}
	return n
}

// machine is a new instance as the API keeps it.
func (s *Server) machine(zone string, in compute.Instance) *machine {
	in.Id, in.Kind, in.CreationTimestamp = s.id(), "compute#instance", stamp()
	in.Zone, in.SelfLink = home+"projects/"+s.o.Project+"/zones/"+zone, s.link(zone, "instances", in.Name)
	if !strings.HasPrefix(in.MachineType, home) && in.MachineType != "" {
		in.MachineType = home + "projects/" + s.o.Project + "/" + in.MachineType
	}
	in.LabelFingerprint, in.Fingerprint = "42WmSpB8rSM=", "42WmSpB8rSM="
	in.Status = "PROVISIONING"
	return &machine{in: in}
}

func (s *Server) disk(zone, name string, labels map[string]string, users ...string) *compute.Disk {
	return &compute.Disk{
		Id: s.id(), Kind: "compute#disk", Name: name, CreationTimestamp: stamp(), Labels: labels, SizeGb: 10, Status: "READY", Users: users,
		SelfLink: s.link(zone, "disks", name), Zone: home + "projects/" + s.o.Project + "/zones/" + zone,
	}
}

// drop removes an instance and its disk.
func (s *Server) drop(z *zone, name string) {
	if m := z.instances[name]; m != nil {
		m.halt()
		delete(z.instances, name)
		delete(z.disks, name)
	}
}

func (s *Server) absent(r *http.Request, kind string) *googleapi.Error {
	return notFound("projects/" + s.o.Project + "/zones/" + r.PathValue("zone") + "/" + kind + "/" + r.PathValue("name"))
}

func getInstance(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	m := z.instances[r.PathValue("name")]
	if m == nil {
		return nil, s.absent(r, "instances")
	}
	in := m.copy()
	return &in, nil
}

// copy has interfaces of its own, since addresses change.
func (m *machine) copy() compute.Instance {
	in := m.in
	in.NetworkInterfaces = nil
	for _, n := range m.in.NetworkInterfaces {
		one := *n
		one.AccessConfigs = nil
		for _, a := range n.AccessConfigs {
			c := *a
			one.AccessConfigs = append(one.AccessConfigs, &c)
		}
		in.NetworkInterfaces = append(in.NetworkInterfaces, &one)
	}
	return in
}

func listInstances(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	lets, p := filter(r)
	if p != nil {
		return nil, p
	}
	there := map[string]*compute.Instance{}
	if stale, ok := s.faults.stale[r.PathValue("zone")]; ok {
		for _, in := range stale {
			there[in.Name] = in
		}
	} else {
		for name, m := range z.instances {
			in := m.copy()
			there[name] = &in
		}
	}
	var names []string
	for name, in := range there {
		if lets(name, "", in.Labels) {
			names = append(names, name)
		}
	}
	out := &compute.InstanceList{Kind: "compute#instanceList"}
	names, out.NextPageToken = s.page(r, names)
	for _, name := range names {
		out.Items = append(out.Items, there[name])
	}
	if s.faults.warned[r.PathValue("zone")] {
		out.Warning = &compute.InstanceListWarning{Code: "UNREACHABLE", Message: "some cells did not answer"}
	}
	return out, nil
}

// startInstance starts what is TERMINATED and resumes what is SUSPENDED.
func startInstance(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	name, at := r.PathValue("name"), r.PathValue("zone")
	m := z.instances[name]
	if m == nil {
		return nil, s.absent(r, "instances")
	}
	resume := strings.HasSuffix(r.URL.Path, "/resume")
	kind := "start"
	if resume {
		kind = "resume"
	}
	switch {
	case m.in.Status == "RUNNING" && !resume:
		return s.begin(r, kind, s.link(at, "instances", name), m.in.Id, nil, nil)
	case m.in.Status == "TERMINATED" && !resume, m.in.Status == "SUSPENDED" && resume:
	default:
		return nil, problem(http.StatusBadRequest, "resourceNotReady", "The resource 'projects/%s/zones/%s/instances/%s' is not ready", s.o.Project, at, name)
	}
	was := m.in.Status
	return s.begin(r, kind, s.link(at, "instances", name), m.in.Id, func() {
		if m.in.Status == was {
			m.in.Status = "STAGING"
		}
	}, func() *failure {
		switch {
		case z.instances[name] != m, m.in.Status != "STAGING":
			return nil
		case s.faults.exhausted[at]:
			m.in.Status = was
			return exhausted(s, at)
		}
		return s.launch(m)
	})
}

// deleteInstance stops and removes; while it does the instance is STOPPING and
// further deletes are refused.
func deleteInstance(s *Server, r *http.Request, z *zone) (any, *googleapi.Error) {
	name, at := r.PathValue("name"), r.PathValue("zone")
	m := z.instances[name]
	if m == nil {
		return nil, s.absent(r, "instances")
	}
	if m.in.DeletionProtection {
		return nil, problem(http.StatusBadRequest, "invalidResourceUsage", "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion.'.")
	}
	if m.in.Status == "STOPPING" || m.in.Status == "PENDING_STOP" && r.URL.Query().Get("noGracefulShutdown") != "true" {
		return nil, problem(http.StatusBadRequest, "resourceNotReady", "The resource 'projects/%s/zones/%s/instances/%s' is not ready", s.o.Project, at, name)
	}
	m.in.Status = "STOPPING"
	return s.begin(r, "delete", s.link(at, "instances", name), m.in.Id, nil, func() *failure {
		if z.instances[name] == m {
			s.drop(z, name)
		}
		return nil
	})
}

// address returns a loopback address that no instance had for long.
func (s *Server) address() string {
	s.addresses++
	n := s.addresses % (8 << 16)
	return netip.AddrFrom4([4]byte{127, byte(112 + n>>16), byte(n >> 8), byte(1 + n%254)}).String()
}
