package kubernetes

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Section is the section `kubernetes` of a provider in the providers file.
// docs/kubernetes-provider.md says what each field means.
type Section struct {
	// Cluster is what ids and status.host call the cluster; default "cluster".
	Cluster string `yaml:"cluster"`
	// Namespace is where the Pods are. It must exist.
	Namespace string `yaml:"namespace"`
	// KubeconfigSecret leads to another cluster; without it, it is the operator's
	// own.
	KubeconfigSecret *KubeconfigSecret `yaml:"kubeconfigSecret"`
	// ServiceAccount is what the Pods run as; default "fleetdesk-proxy". It needs
	// no rights, and gets no token.
	ServiceAccount string `yaml:"serviceAccount"`
	// Images are what placement.image may name, besides a reference of its own.
	// The key "squid" is there unless it is given here.
	Images map[string]Image `yaml:"images"`
	// DefaultImage is the key used where placement.image is empty; default
	// "squid".
	DefaultImage string `yaml:"defaultImage"`
	// ImagePullSecrets are Secrets of the namespace that registries ask for.
	ImagePullSecrets []string `yaml:"imagePullSecrets"`
	// Resources are the size of a Proxy that says none.
	Resources Resources `yaml:"resources"`
	// NodeSelector and Tolerations are every Pod's.
	NodeSelector map[string]string `yaml:"nodeSelector"`
	Tolerations  []Toleration      `yaml:"tolerations"`
	// Spread says how Pods spread over exit nodes.
	Spread Spread `yaml:"spread"`
	// Service, where it is given, is made for each Pod, and its address is the
	// proxy's.
	Service *Service `yaml:"service"`
	// Labels are put on the Pods besides our own.
	Labels map[string]string `yaml:"labels"`
	// MaxInstances bounds the installation's Pods; 0 is no bound.
	MaxInstances int `yaml:"maxInstances"`
}

// KubeconfigSecret names a Secret of the operator's own namespace.
type KubeconfigSecret struct {
	Name string `yaml:"name"`
	// Key is its key with the kubeconfig; default "kubeconfig".
	Key string `yaml:"key"`
}

// Image is one image.
type Image struct {
	// Image is the reference.
	Image string `yaml:"image"`
	// Squid says that it holds squid where Debian's package puts it: squid is
	// started with our configuration. Other images start as they do by themselves.
	Squid bool `yaml:"squid"`
	// Probe is the command that tells whether the proxy proxies, run in the
	// container; by default a script for bash.
	Probe []string `yaml:"probe"`
	// RunAsUser is the number of the user; by default squid's, or the image's own.
	RunAsUser *int64 `yaml:"runAsUser"`
	// Credentials is "hashed" (the default), or "plain" for an image that cannot
	// use a hash.
	Credentials string `yaml:"credentials"`
}

// Resources are quantities, as in a Proxy.
type Resources struct {
	CPUs   string `yaml:"cpus"`
	Memory string `yaml:"memory"`
	Disk   string `yaml:"disk"`
}

// Toleration is one of a Pod's, with the meaning that Kubernetes gives it.
type Toleration struct {
	Key      string `yaml:"key"`
	Operator string `yaml:"operator"`
	Value    string `yaml:"value"`
	Effect   string `yaml:"effect"`
	// Seconds is how long NoExecute is borne; unset for ever.
	Seconds *int64 `yaml:"tolerationSeconds"`
}

// Spread is a topology spread of the installation's Pods.
type Spread struct {
	// TopologyKey is the nodes' label that tells exits apart; default
	// kubernetes.io/hostname, for Pods that leave by their node's address.
	TopologyKey string `yaml:"topologyKey"`
	// MaxSkew is how uneven it may be; default 1.
	MaxSkew int32 `yaml:"maxSkew"`
	// Required leaves a Pod unscheduled rather than uneven.
	Required bool `yaml:"required"`
}

// Service is the kind of Service that each Pod gets.
type Service struct {
	// Type is ClusterIP, NodePort or LoadBalancer.
	Type        string            `yaml:"type"`
	Annotations map[string]string `yaml:"annotations"`
}

// FieldError is what is wrong with one field of a Section. It is Invalid.
type FieldError struct {
	// Path leads to the field, from the section on: images, squid, image.
	Path []string
	Err  error
}

func (e *FieldError) Error() string {
	return "kubernetes." + strings.Join(e.Path, ".") + ": " + e.Err.Error()
}

// Unwrap gives the class beside the cause.
func (e *FieldError) Unwrap() []error { return []error{fault.Invalid, e.Err} }

func bad(path []string, format string, args ...any) error {
	return &FieldError{Path: path, Err: fmt.Errorf(format, args...)}
}

const (
	// DefaultImage is the image of the key "squid": Canonical's build, from
	// Docker Hub. Who wants another one, or a mirror, gives images.squid.
	DefaultImage = "docker.io/ubuntu/squid:6.6-24.04_beta"
	// squidKey is the key that is always there.
	squidKey = "squid"

	defaultCluster        = "cluster"
	defaultKubeconfigKey  = "kubeconfig"
	defaultServiceAccount = "fleetdesk-proxy"
	defaultCPUs           = "250m"
	defaultMemory         = "256Mi"
	defaultDisk           = "256Mi"
	// squidUser is the user "proxy" of Debian and Ubuntu.
	squidUser = 13
	// maxListed bounds lists and maps of a section.
	maxListed = 100
)

// keyForm is what an image may be called, referenceForm what a reference looks
// like: the registry's name, path, tag and digest. The kubelet reads it.
var (
	keyForm       = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	referenceForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}$`)
)

// settled is a section with all defaults, checked.
type settled struct {
	cluster, namespace string
	kubeconfig         *provider.SecretRef
	account            string
	images             map[string]picture
	defaultImage       string
	pullSecrets        []corev1.LocalObjectReference
	resources          provider.Resources
	nodeSelector       map[string]string
	tolerations        []corev1.Toleration
	spread             corev1.TopologySpreadConstraint
	service            *Service
	labels             map[string]string
	max                int
}

// picture is an image that instances can be made from.
type picture struct {
	reference string
	squid     bool
	probe     []string
	user      *int64
	plain     bool
}

// settle checks a section and fills its defaults in. Its errors are
// FieldErrors.
func settle(s Section) (settled, error) {
	out := settled{
		cluster: or(s.Cluster, defaultCluster), namespace: s.Namespace,
		account: or(s.ServiceAccount, defaultServiceAccount), max: s.MaxInstances, service: s.Service,
	}
	if bads := validation.IsDNS1123Label(out.cluster); len(bads) > 0 {
		return out, bad([]string{"cluster"}, "want a name of lower-case letters, digits and dashes (at most 63), got %q", short(s.Cluster))
	}
	if bads := validation.IsDNS1123Label(s.Namespace); len(bads) > 0 {
		return out, bad([]string{"namespace"}, "want the name of a namespace that exists in the cluster, got %q", short(s.Namespace))
	}
	if k := s.KubeconfigSecret; k != nil {
		if bads := validation.IsDNS1123Subdomain(k.Name); len(bads) > 0 {
			return out, bad([]string{"kubeconfigSecret", "name"}, "want the name of a Secret in the operator's namespace, got %q", short(k.Name))
		}
		if bads := validation.IsConfigMapKey(or(k.Key, defaultKubeconfigKey)); len(bads) > 0 {
			return out, bad([]string{"kubeconfigSecret", "key"}, "want a key of the Secret, got %q", short(k.Key))
		}
		out.kubeconfig = &provider.SecretRef{Name: k.Name, Key: or(k.Key, defaultKubeconfigKey)}
	}
	if bads := validation.IsDNS1123Subdomain(out.account); len(bads) > 0 {
		return out, bad([]string{"serviceAccount"}, "want the name of a service account in the namespace, got %q", short(s.ServiceAccount))
	}
	for i, name := range s.ImagePullSecrets {
		if bads := validation.IsDNS1123Subdomain(name); len(bads) > 0 || i >= maxListed {
			return out, bad([]string{"imagePullSecrets", fmt.Sprint(i)}, "want the names of at most %d Secrets in the namespace, got %q", maxListed, short(name))
		}
		out.pullSecrets = append(out.pullSecrets, corev1.LocalObjectReference{Name: name})
	}
	if s.MaxInstances < 0 {
		return out, bad([]string{"maxInstances"}, "%d is below zero; 0 is no bound", s.MaxInstances)
	}
	for _, part := range []func(Section, *settled) error{settleImages, settleResources, settleLabels, settleTolerations, settleSpread, settleService} {
		if err := part(s, &out); err != nil {
			return out, err
		}
	}
	return out, nil
}

func settleImages(s Section, out *settled) error {
	images := map[string]Image{squidKey: {Image: DefaultImage, Squid: true}}
	maps.Copy(images, s.Images)
	out.images = map[string]picture{}
	for _, key := range slices.Sorted(maps.Keys(images)) {
		im := images[key]
		at := func(field string) []string { return []string{"images", short(key), field} }
		if !keyForm.MatchString(key) {
			return bad([]string{"images", short(key)}, "an image's key is a plain name of at most 63 characters")
		}
		if !referenceForm.MatchString(im.Image) {
			return bad(at("image"), "want a reference such as registry.example.com/squid:6, got %q", short(im.Image))
		}
		if im.RunAsUser != nil && (*im.RunAsUser < 1 || *im.RunAsUser > 1<<31-1) {
			return bad(at("runAsUser"), "%d is not in 1 to 2147483647: proxies do not run as root", *im.RunAsUser)
		}
		switch im.Credentials {
		case "", "hashed", "plain":
		default:
			return bad(at("credentials"), "want hashed or plain, got %q", short(im.Credentials))
		}
		p := picture{reference: im.Image, squid: im.Squid, probe: im.Probe, user: im.RunAsUser, plain: im.Credentials == "plain"}
		if p.squid && p.plain {
			return bad(at("credentials"), "squid takes hashed credentials alone")
		}
		if p.squid && p.user == nil {
			user := int64(squidUser)
			p.user = &user
		}
		out.images[key] = p
	}
	out.defaultImage = or(s.DefaultImage, squidKey)
	if _, ok := out.images[out.defaultImage]; !ok {
		return bad([]string{"defaultImage"}, "%q is none of images: %s", short(s.DefaultImage), listed(out.images))
	}
	return nil
}

func settleResources(s Section, out *settled) error {
	for _, f := range []struct {
		field, text, fallback string
		milli                 bool
		into                  *int64
	}{
		{"cpus", s.Resources.CPUs, defaultCPUs, true, &out.resources.MilliCPUs},
		{"memory", s.Resources.Memory, defaultMemory, false, &out.resources.MemoryBytes},
		{"disk", s.Resources.Disk, defaultDisk, false, &out.resources.DiskBytes},
	} {
		q, err := resource.ParseQuantity(or(f.text, f.fallback))
		if err != nil || q.Sign() <= 0 {
			return bad([]string{"resources", f.field}, "want a quantity above zero such as %s, got %q", f.fallback, short(f.text))
		}
		if *f.into = q.Value(); f.milli {
			*f.into = q.MilliValue()
		}
	}
	return nil
}

func settleLabels(s Section, out *settled) error {
	for field, m := range map[string]map[string]string{"labels": s.Labels, "nodeSelector": s.NodeSelector} {
		if len(m) > maxListed {
			return bad([]string{field}, "%d are more than there may be (%d)", len(m), maxListed)
		}
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if bads := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(m[key])...); len(bads) > 0 {
				return bad([]string{field, short(key)}, "%s", bads[0])
			}
			if field == "labels" && (key == labelManaged || strings.HasPrefix(key, prefix)) {
				return bad([]string{field, short(key)}, "this label is the operator's own")
			}
		}
	}
	out.labels, out.nodeSelector = s.Labels, s.NodeSelector
	return nil
}

func settleTolerations(s Section, out *settled) error {
	if len(s.Tolerations) > maxListed {
		return bad([]string{"tolerations"}, "%d are more than there may be (%d)", len(s.Tolerations), maxListed)
	}
	for i, t := range s.Tolerations {
		at := func(field string) []string { return []string{"tolerations", fmt.Sprint(i), field} }
		op := corev1.TolerationOperator(or(t.Operator, string(corev1.TolerationOpEqual)))
		switch {
		case op != corev1.TolerationOpEqual && op != corev1.TolerationOpExists:
			return bad(at("operator"), "want Equal or Exists, got %q", short(t.Operator))
		case t.Key == "" && op != corev1.TolerationOpExists:
			return bad(at("key"), "only with operator Exists it may be left out, which tolerates everything")
		case t.Key != "" && len(validation.IsQualifiedName(t.Key)) > 0:
			return bad(at("key"), "want the key of a taint, got %q", short(t.Key))
		case op == corev1.TolerationOpExists && t.Value != "":
			return bad(at("value"), "with operator Exists there is no value")
		case t.Value != "" && len(validation.IsValidLabelValue(t.Value)) > 0:
			return bad(at("value"), "want the value of a taint, got %q", short(t.Value))
		}
		effect := corev1.TaintEffect(t.Effect)
		switch effect {
		case "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			return bad(at("effect"), "want NoSchedule, PreferNoSchedule or NoExecute, got %q", short(t.Effect))
		}
		if t.Seconds != nil && effect != corev1.TaintEffectNoExecute {
			return bad(at("tolerationSeconds"), "only NoExecute is borne for a time")
		}
		out.tolerations = append(out.tolerations, corev1.Toleration{
			Key: t.Key, Operator: op, Value: t.Value, Effect: effect, TolerationSeconds: t.Seconds,
		})
	}
	return nil
}

func settleSpread(s Section, out *settled) error {
	key := or(s.Spread.TopologyKey, corev1.LabelHostname)
	if bads := validation.IsQualifiedName(key); len(bads) > 0 {
		return bad([]string{"spread", "topologyKey"}, "want the key of a label of nodes, got %q", short(key))
	}
	if s.Spread.MaxSkew < 0 {
		return bad([]string{"spread", "maxSkew"}, "%d is below 1", s.Spread.MaxSkew)
	}
	out.spread = corev1.TopologySpreadConstraint{
		TopologyKey: key, MaxSkew: max(1, s.Spread.MaxSkew), WhenUnsatisfiable: corev1.ScheduleAnyway,
	}
	if s.Spread.Required {
		out.spread.WhenUnsatisfiable = corev1.DoNotSchedule
	}
	return nil
}

func settleService(s Section, _ *settled) error {
	if s.Service == nil {
		return nil
	}
	switch corev1.ServiceType(s.Service.Type) {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
	default:
		return bad([]string{"service", "type"}, "want ClusterIP, NodePort or LoadBalancer, got %q; leave the service out to use the Pods' own addresses", short(s.Service.Type))
	}
	for _, key := range slices.Sorted(maps.Keys(s.Service.Annotations)) {
		if bads := validation.IsQualifiedName(strings.ToLower(key)); len(bads) > 0 {
			return bad([]string{"service", "annotations", short(key)}, "%s", bads[0])
		}
		if strings.HasPrefix(key, prefix) {
			return bad([]string{"service", "annotations", short(key)}, "this annotation is the operator's own")
		}
	}
	return nil
}

func or(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// listed names what there is, for the text of an error.
func listed[V any](m map[string]V) string {
	keys := slices.Sorted(maps.Keys(m))
	const most = 10
	if len(keys) > most {
		return strings.Join(keys[:most], ", ") + fmt.Sprintf(" and %d more", len(keys)-most)
	}
	return strings.Join(keys, ", ")
}

// short bounds what a text quotes.
func short(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
