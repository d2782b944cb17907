package gcp

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// What an instance is called and carries. Both labels are derived, since labels
// hold less than an installation or a UID may have; the description has all.
const (
	labelInstallation = ownPrefix
	labelUID          = ownPrefix + "_uid"
	namePrefix        = "fd-"
	tagLength         = 12
	uidLength         = 32
)

// hash is the first n hexadecimal digits of what the parts make.
func hash(n int, parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))[:n]
}

// tagOf is an installation in labels and names.
func tagOf(installation string) string { return hash(tagLength, "installation", installation) }

// nameOf is the instance's and its disk's name: one for each installation and
// UID.
func nameOf(o provider.Owner) string {
	return namePrefix + tagOf(o.Installation) + "-" + hash(uidLength, o.Installation, o.UID)
}

// labelsOf are what an owner's instance and disk carry.
func labelsOf(o provider.Owner) map[string]string {
	return map[string]string{labelInstallation: tagOf(o.Installation), labelUID: hash(uidLength, o.UID)}
}

// record is what the description keeps.
type record struct {
	Installation string `json:"installation"`
	Namespace    string `json:"namespace"`
	Name         string `json:"name"`
	UID          string `json:"uid"`
	Port         int    `json:"port"`
}

// maxDescription is Compute Engine's own bound.
const maxDescription = 2048

func describe(o provider.Owner, port int) string {
	text, err := json.Marshal(struct {
		Record record `json:"fleetdesk"`
	}{record{o.Installation, o.Namespace, o.Name, o.UID, port}})
	if err != nil {
		return "" // of strings and a number: cannot be
	}
	return string(text)
}

// read says whose an instance is; an error means that it cannot be told. All of
// its three places must agree.
func read(in *compute.Instance) (provider.Owner, int, error) {
	var d struct {
		Record *record `json:"fleetdesk"`
	}
	if err := json.Unmarshal([]byte(in.Description), &d); err != nil || d.Record == nil {
		return provider.Owner{}, 0, fmt.Errorf("its description is not what was written there")
	}
	r := *d.Record
	o := provider.Owner{Installation: r.Installation, Namespace: r.Namespace, Name: r.Name, UID: r.UID}
	if r.UID == "" || r.Installation == "" || r.Port < 1 || r.Port > 65535 || nameOf(o) != in.Name {
		return provider.Owner{}, 0, fmt.Errorf("its description is another instance's")
	}
	for k, v := range labelsOf(o) {
		if in.Labels[k] != v {
			return provider.Owner{}, 0, fmt.Errorf("its label %s is not %s", k, v)
		}
	}
	return o, r.Port, nil
}

// ID is a providerID: gcp://<provider>/<project>/<zone>/<name>.
type ID struct{ Provider, Project, Zone, Name string }

func (id ID) String() string {
	return "gcp://" + id.Provider + "/" + id.Project + "/" + id.Zone + "/" + id.Name
}

var (
	providerForm = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9._]{0,126}[A-Za-z0-9])?$`)
	nameForm     = regexp.MustCompile(fmt.Sprintf(`^%s[0-9a-f]{%d}-[0-9a-f]{%d}$`, namePrefix, tagLength, uidLength))
)

// ParseID reads a providerID; what is none is Invalid.
func ParseID(text string) (ID, error) {
	rest, ok := strings.CutPrefix(text, "gcp://")
	parts := strings.Split(rest, "/")
	if ok && len(parts) == 4 {
		id := ID{parts[0], parts[1], parts[2], parts[3]}
		if providerForm.MatchString(id.Provider) && projectForm.MatchString(id.Project) && zoneForm.MatchString(id.Zone) && len(id.Zone) <= 63 && nameForm.MatchString(id.Name) {
			return id, nil
		}
	}
	return ID{}, fault.Errorf(fault.Invalid, "providerID %q is none of a gcp provider: want gcp://provider/project/zone/name", short(text))
}

// created is an instance's own time; zero when it cannot be read.
func created(in *compute.Instance) time.Time {
	t, err := time.Parse(time.RFC3339, in.CreationTimestamp)
	if err != nil {
		return time.Time{}
	}
	return t
}

// listed names what there is, for the text of an error.
func listed[V any](m map[string]V) string { return some(slices.Sorted(maps.Keys(m))) }

func some(names []string) string {
	if len(names) == 0 {
		return "there are none"
	}
	const most = 10
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// short bounds what a text quotes.
func short(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// line is text from outside on one line, bounded.
func line(s string) string {
	const most = 400
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
