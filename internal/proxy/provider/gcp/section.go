package gcp

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Section is the section `gcp` of a provider in the providers file.
// docs/gcp-provider.md says what each field means.
type Section struct {
	Project string `yaml:"project"`
	// Zones are where instances may be, the preferred one first.
	Zones []string `yaml:"zones"`
	// Spread takes the zones in an order of each Proxy's own, so that they are
	// used alike.
	Spread bool `yaml:"spread"`
	// MachineType is used where a Proxy asks for no cpus and memory; default
	// e2-micro.
	MachineType string `yaml:"machineType"`
	// MachineTypes are those that resources may lead to, the cheapest first;
	// default is a list of e2 types.
	MachineTypes []MachineType `yaml:"machineTypes"`
	// Images are what placement.image may name: a family or an image.
	Images       map[string]string `yaml:"images"`
	DefaultImage string            `yaml:"defaultImage"`
	Disk         Disk              `yaml:"disk"`
	// Network and Subnetwork are where instances are attached; default the
	// network "default".
	Network    string `yaml:"network"`
	Subnetwork string `yaml:"subnetwork"`
	// Address is external (default) or internal.
	Address string `yaml:"address"`
	// Spot asks for machines that Compute Engine may take back.
	Spot   bool              `yaml:"spot"`
	Labels map[string]string `yaml:"labels"`
	// Tags are network tags, for firewall rules.
	Tags []string `yaml:"tags"`
	// ServiceAccount is whom instances act as; default nobody.
	ServiceAccount ServiceAccount `yaml:"serviceAccount"`
	Credentials    Credentials    `yaml:"credentials"`
	// MaxInstances bounds the instances in each zone; 0 is no bound.
	MaxInstances int `yaml:"maxInstances"`
	// RequestsPerSecond bounds the calls of this provider; default 15.
	RequestsPerSecond float64 `yaml:"requestsPerSecond"`
	// Endpoint is another address of the API, such as one of Private Service
	// Connect.
	Endpoint string `yaml:"endpoint"`
}

// MachineType is one size of machine.
type MachineType struct {
	Name string `yaml:"name"`
	// MilliCPUs are what it really gives; a shared core gives a part.
	MilliCPUs int64 `yaml:"milliCPUs"`
	MemoryMiB int64 `yaml:"memoryMiB"`
}

// Disk is the boot disk.
type Disk struct {
	// Type is a disk type; default pd-balanced.
	Type string `yaml:"type"`
	// SizeGiB is used where a Proxy asks for no disk; default the image's own.
	SizeGiB int64 `yaml:"sizeGiB"`
}

// ServiceAccount is whom an instance's programs act as.
type ServiceAccount struct {
	Email  string   `yaml:"email"`
	Scopes []string `yaml:"scopes"`
}

// Credentials say as whom the operator calls the API; none are the application
// default credentials.
type Credentials struct {
	SecretRef SecretRef `yaml:"secretRef"`
}

// SecretRef names a key of a Secret in the operator's namespace.
type SecretRef struct {
	Name string `yaml:"name"`
	Key  string `yaml:"key"`
}

// FieldError is what is wrong with one field of a Section. It is Invalid.
type FieldError struct {
	// Path leads to the field, from the section on: disk, sizeGiB.
	Path []string
	Err  error
}

func (e *FieldError) Error() string { return "gcp." + strings.Join(e.Path, ".") + ": " + e.Err.Error() }

// Unwrap gives the class beside the cause.
func (e *FieldError) Unwrap() []error { return []error{fault.Invalid, e.Err} }

func bad(path []string, format string, args ...any) error {
	return &FieldError{Path: path, Err: fmt.Errorf(format, args...)}
}

const (
	defaultMachineType = "e2-micro"
	defaultDiskType    = "pd-balanced"
	defaultNetwork     = "global/networks/default"
	defaultKey         = "key.json"
	defaultRate        = 15
	maxRate            = 1000
	maxZones           = 100
	maxDiskGiB         = 64 << 10
	// ownPrefix begins the labels that are ours.
	ownPrefix = "fleetdesk"
)

// usualTypes are what resources lead to where the section names no types.
var usualTypes = []MachineType{
	{"e2-micro", 250, 1 << 10},
	{"e2-small", 500, 2 << 10},
	{"e2-medium", 1000, 4 << 10},
	{"e2-standard-2", 2000, 8 << 10},
	{"e2-standard-4", 4000, 16 << 10},
	{"e2-standard-8", 8000, 32 << 10},
	{"e2-standard-16", 16000, 64 << 10},
	{"e2-standard-32", 32000, 128 << 10},
}

var (
	projectForm = regexp.MustCompile(`^([a-z0-9.-]{1,63}:)?[a-z]([-a-z0-9]{4,28}[a-z0-9])$`)
	// zoneForm also bounds what a region may be: a zone without its last part.
	zoneForm    = regexp.MustCompile(`^[a-z]+(-[a-z0-9]+)+-[a-z]$`)
	plainForm   = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKey    = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelForm   = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
	imageForm   = regexp.MustCompile(`^projects/(?:[a-z0-9.-]{1,63}:)?[a-z][-a-z0-9]{4,62}/global/images/(family/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	keyForm     = regexp.MustCompile(`^[A-Za-z0-9_]([-A-Za-z0-9_.@:+]{0,62})$`)
	networkForm = regexp.MustCompile(`^(projects/[-a-z0-9.:]{1,100}/)?global/networks/[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	subnetForm  = regexp.MustCompile(`^(projects/[-a-z0-9.:]{1,100}/)?regions/[a-z0-9-]{1,40}/subnetworks/[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	mailForm    = regexp.MustCompile(`^[^@\s'"]{1,100}@[A-Za-z0-9.-]{1,150}$`)
	scopeForm   = regexp.MustCompile(`^https://www\.googleapis\.com/auth/[a-z0-9._-]{1,100}$`)
	// secretForm is what Kubernetes lets a Secret and a key in it be called.
	secretForm = regexp.MustCompile(`^[-A-Za-z0-9._]{1,253}$`)
)

// settle checks a section and fills its defaults in. Its errors are
// FieldErrors.
func settle(s Section) (Section, error) {
	if !projectForm.MatchString(s.Project) {
		return s, bad([]string{"project"}, "want the id of a project (not its name or number), got %q", short(s.Project))
	}
	if err := settleZones(s); err != nil {
		return s, err
	}
	if s.MachineType == "" {
		s.MachineType = defaultMachineType
	}
	if !plainForm.MatchString(s.MachineType) {
		return s, bad([]string{"machineType"}, "want a machine type such as e2-micro, got %q", short(s.MachineType))
	}
	for i, t := range s.MachineTypes {
		at := []string{"machineTypes", fmt.Sprint(i)}
		switch {
		case !plainForm.MatchString(t.Name):
			return s, bad(append(at, "name"), "want a machine type such as e2-micro, got %q", short(t.Name))
		case t.MilliCPUs <= 0:
			return s, bad(append(at, "milliCPUs"), "%d is not above zero", t.MilliCPUs)
		case t.MemoryMiB <= 0:
			return s, bad(append(at, "memoryMiB"), "%d is not above zero", t.MemoryMiB)
		}
	}
	if len(s.MachineTypes) == 0 {
		s.MachineTypes = usualTypes
	}
	var err error
	for _, step := range []func(Section) (Section, error){settleImages, settleNetwork, settleTags, settleAccess} {
		if s, err = step(s); err != nil {
			return s, err
		}
	}
	return s, nil
}

func settleZones(s Section) error {
	if len(s.Zones) == 0 {
		return bad([]string{"zones"}, "there are none: name at least one, such as europe-west1-b")
	}
	if len(s.Zones) > maxZones {
		return bad([]string{"zones"}, "%d are more than one provider may have (%d)", len(s.Zones), maxZones)
	}
	for i, z := range s.Zones {
		at := []string{"zones", fmt.Sprint(i)}
		if !zoneForm.MatchString(z) || len(z) > 63 {
			return bad(at, "want a zone such as europe-west1-b, got %q", short(z))
		}
		if slices.Contains(s.Zones[:i], z) {
			return bad(at, "%s is named twice", z)
		}
	}
	return nil
}

func settleImages(s Section) (Section, error) {
	images := map[string]string{}
	for key, ref := range s.Images {
		if !keyForm.MatchString(key) {
			return s, bad([]string{"images", short(key)}, "an image's key is a plain name of at most 63 characters")
		}
		full, ok := imageOf(ref)
		if !ok {
			return s, bad([]string{"images", key}, "want an image such as projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64, got %q", short(ref))
		}
		images[key] = full
	}
	s.Images = images
	switch {
	case s.DefaultImage == "" && len(images) == 1:
		for key := range images {
			s.DefaultImage = key
		}
	case s.DefaultImage != "" && images[s.DefaultImage] == "":
		return s, bad([]string{"defaultImage"}, "%q is none of images: %s", short(s.DefaultImage), listed(images))
	}
	if s.Disk.Type == "" {
		s.Disk.Type = defaultDiskType
	}
	if !plainForm.MatchString(s.Disk.Type) {
		return s, bad([]string{"disk", "type"}, "want a disk type such as pd-balanced, got %q", short(s.Disk.Type))
	}
	if s.Disk.SizeGiB < 0 || s.Disk.SizeGiB > maxDiskGiB {
		return s, bad([]string{"disk", "sizeGiB"}, "%d is not in 0 to %d; 0 is the image's own size", s.Disk.SizeGiB, maxDiskGiB)
	}
	return s, nil
}

// imageOf reads a reference to an image or a family; a full URL is one too.
func imageOf(ref string) (string, bool) {
	ref = strings.TrimPrefix(ref, "https://www.googleapis.com/compute/v1/")
	ref = strings.TrimPrefix(ref, "https://compute.googleapis.com/compute/v1/")
	return ref, imageForm.MatchString(ref)
}

func settleNetwork(s Section) (Section, error) {
	if s.Network == "" && s.Subnetwork == "" {
		s.Network = defaultNetwork
	}
	if plainForm.MatchString(s.Network) {
		s.Network = "global/networks/" + s.Network
	}
	if s.Network != "" && !networkForm.MatchString(s.Network) {
		return s, bad([]string{"network"}, "want a name, or projects/PROJECT/global/networks/NAME, got %q", short(s.Network))
	}
	if s.Subnetwork != "" && !subnetForm.MatchString(s.Subnetwork) {
		return s, bad([]string{"subnetwork"}, "want regions/REGION/subnetworks/NAME, with projects/PROJECT/ before it where it is another project's; got %q", short(s.Subnetwork))
	}
	for i, z := range s.Zones {
		if s.Subnetwork != "" && !strings.Contains(s.Subnetwork, "regions/"+region(z)+"/") {
			return s, bad([]string{"zones", fmt.Sprint(i)}, "%s is not in the region of subnetwork %s: make a provider for each region, or name a network alone", z, short(s.Subnetwork))
		}
	}
	switch s.Address {
	case "":
		s.Address = "external"
	case "external", "internal":
	default:
		return s, bad([]string{"address"}, "want external or internal, got %q", short(s.Address))
	}
	return s, nil
}

func settleTags(s Section) (Section, error) {
	const most = 32
	if len(s.Labels) > most {
		return s, bad([]string{"labels"}, "%d are more than %d", len(s.Labels), most)
	}
	for k, v := range s.Labels {
		switch {
		case strings.HasPrefix(k, ownPrefix):
			return s, bad([]string{"labels", short(k)}, "labels that begin with %s are the operator's own", ownPrefix)
		case !labelKey.MatchString(k), !labelForm.MatchString(v):
			return s, bad([]string{"labels", short(k)}, "a label's key and value have a-z, 0-9, _ and - (at most 63), and a key begins with a letter; got %q", short(v))
		}
	}
	for i, tag := range s.Tags {
		if !plainForm.MatchString(tag) {
			return s, bad([]string{"tags", fmt.Sprint(i)}, "a network tag has a-z, 0-9 and - (at most 63), got %q", short(tag))
		}
	}
	return s, nil
}

func settleAccess(s Section) (Section, error) {
	if a := s.ServiceAccount; a.Email != "" || len(a.Scopes) > 0 {
		if !mailForm.MatchString(a.Email) {
			return s, bad([]string{"serviceAccount", "email"}, "want the address of a service account, got %q", short(a.Email))
		}
		if len(a.Scopes) == 0 {
			return s, bad([]string{"serviceAccount", "scopes"}, "there are none: name what the machines' programs may do, such as https://www.googleapis.com/auth/logging.write, or leave serviceAccount out")
		}
		for i, scope := range a.Scopes {
			if !scopeForm.MatchString(scope) {
				return s, bad([]string{"serviceAccount", "scopes", fmt.Sprint(i)}, "want a scope such as https://www.googleapis.com/auth/logging.write, got %q", short(scope))
			}
		}
	}
	if ref := s.Credentials.SecretRef; ref != (SecretRef{}) {
		if !secretForm.MatchString(ref.Name) {
			return s, bad([]string{"credentials", "secretRef", "name"}, "want the name of a Secret in the operator's namespace, got %q", short(ref.Name))
		}
		if ref.Key == "" {
			s.Credentials.SecretRef.Key = defaultKey
		} else if !secretForm.MatchString(ref.Key) {
			return s, bad([]string{"credentials", "secretRef", "key"}, "want a key of the Secret, got %q", short(ref.Key))
		}
	}
	if s.MaxInstances < 0 {
		return s, bad([]string{"maxInstances"}, "%d is below zero; 0 is no bound", s.MaxInstances)
	}
	if s.RequestsPerSecond == 0 {
		s.RequestsPerSecond = defaultRate
	}
	if !(s.RequestsPerSecond >= 0.1 && s.RequestsPerSecond <= maxRate) {
		return s, bad([]string{"requestsPerSecond"}, "%v is not in 0.1 to %d", s.RequestsPerSecond, maxRate)
	}
	if s.Endpoint != "" {
		if !trusted(s.Endpoint) {
			return s, bad([]string{"endpoint"}, "want https://HOST/compute/v1/ (http on loopback alone), got %q", short(s.Endpoint))
		}
		s.Endpoint = strings.TrimSuffix(s.Endpoint, "/") + "/"
	}
	return s, nil
}

// trusted reports whether tokens and assertions may be sent to the address:
// nobody on the way can read them.
func trusted(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	if u.Scheme == "https" {
		return true
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "http" && err == nil && ip.IsLoopback()
}

// ref is the Secret of the credentials.
func (c Credentials) ref() provider.SecretRef {
	return provider.SecretRef{Name: c.SecretRef.Name, Key: c.SecretRef.Key}
}

// region is a zone's.
func region(zone string) string { return zone[:strings.LastIndexByte(zone, '-')] }
