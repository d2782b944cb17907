//go:build integration

package kvm_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/seed"
	"fleetdesk/internal/testkit/libvirthost"
)

// ownVendor is the configuration's own vendor data: a cloud-config beside the
// script, with what a mail program would spoil.
const ownVendor = "#cloud-config\r\n# Grüße\nwrite_files:\n- path: /var/tmp/vendor\n  content: 'version: 1.10 – Grüße aus Zürich → 世界'\n"

// The whole path with Debian's own cloud-init, agent and squid: a boot for each
// format of user-data, and those where the guest agent is not in the image. The
// provider makes the machines; what the guest says comes through its agent.
func TestRealDebian(t *testing.T) {
	r := newDebians(t)
	stories := []struct {
		name string
		run  func(t *testing.T, r *debians)
	}{
		// The longest first.
		{"agent from a repository, and once more", agentFromARepository},
		{"cloud-config, then gzip under the same name", configThenGzip},
		{"no script and no agent", noScript},
		{"MIME archive", mimeArchive},
		{"a shell script of 1 MiB", largeScript},
		{"jinja", jinjaTemplate},
	}
	// Two processors: more at once only make each slower.
	slots := make(chan struct{}, 3)
	var wg sync.WaitGroup
	for _, s := range stories {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			t.Run(s.name, func(t *testing.T) { s.run(t, r) })
		})
	}
	wg.Wait()
	r.f.clean(t)
	r.table(t)
}

// debians are the hosts and providers that all stories share.
type debians struct {
	f *fleet
	// plain has the defaults, own has vendor data too, off installs no agent and
	// has the third host's machines on libvirt's network.
	plain, own, off *kvm.Provider
	// page is a page of the LAN, packages a repository, reports where guests
	// without an agent tell what they are.
	page, packages string
	reports        chan string
	reportTo       string

	mu   sync.Mutex
	rows []*row
}

func newDebians(t *testing.T) *debians {
	images := libvirthost.Images(t)
	f := newFleet(t, 3, func(o *libvirthost.HostOptions) { o.Network = o.N == 3 })
	f.image(t, "bare", images.DebianBare)
	f.image(t, "debian", images.Debian)
	r := &debians{f: f, reports: make(chan string, 4)}
	f.section.InstallGuestAgent = nil
	r.plain = f.open(t)
	r.own = f.open(t, func(o *kvm.Options) { o.Section.VendorData = ownVendor })
	r.off = f.open(t, func(o *kvm.Options) {
		no := false
		o.Section.InstallGuestAgent = &no
		o.Section.Hosts = maps.Clone(o.Section.Hosts)
		h := o.Section.Hosts["box-3"]
		h.Bridge, h.Network = "", "default"
		o.Section.Hosts["box-3"] = h
	})
	r.page = libvirthost.Serve(t, http.HandlerFunc(libvirthost.Hello)).URL
	r.packages = libvirthost.Serve(t, http.FileServer(http.Dir(images.Repository))).URL
	reports := libvirthost.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(io.LimitReader(q.Body, 64<<10))
		select {
		case r.reports <- string(b):
		default:
		}
	})).URL
	u, err := url.Parse(reports)
	if err != nil {
		t.Fatal(err)
	}
	r.reportTo = "/dev/tcp/" + u.Hostname() + "/" + u.Port()
	return r
}

// row is when each stage of one boot was seen.
type row struct {
	name  string
	began time.Time
	mu    sync.Mutex
	at    map[string]time.Duration
	// cpu is what QEMU had used when cloud-init had finished.
	cpu string
	// said are the texts that a person would have read meanwhile.
	said []string
}

var stages = []string{"defined", "uploaded", "started", "agent", "address", "proxy", "finished"}

func (r *debians) row(name string) *row {
	w := &row{name: name, began: time.Now(), at: map[string]time.Duration{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, w)
	return w
}

// mark notes a stage: the first time, or with last each time anew.
func (w *row) mark(stage string, last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, had := w.at[stage]; !had || last {
		w.at[stage] = time.Since(w.began)
	}
}

// table logs the times of all boots.
func (r *debians) table(t *testing.T) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "seconds after the first Create\t%s\tCPU\n", strings.Join(stages, "\t"))
	for _, row := range r.rows {
		_, _ = fmt.Fprint(w, row.name)
		for _, s := range stages {
			if at, ok := row.at[s]; ok {
				_, _ = fmt.Fprintf(w, "\t%.1f", at.Seconds())
			} else {
				_, _ = fmt.Fprint(w, "\t-")
			}
		}
		_, _ = fmt.Fprintf(w, "\t%s\n", row.cpu)
	}
	_ = w.Flush()
	t.Log("\n" + b.String())
}

// machine is one instance with a Debian in it.
type machine struct {
	r    *debians
	row  *row
	h    *libvirthost.Host
	p    provider.Provider
	spec provider.Spec
	name string
	in   provider.Instance
}

// debianSpec is what a Proxy with that user-data becomes.
func debianSpec(name, host, image string, user []byte) provider.Spec {
	s := specOf(newOwner(name), host)
	s.Image, s.UserData = image, provider.Secret(user)
	s.Resources.MemoryBytes = 512 << 20
	return s
}

// storyTime bounds a story: two boots at a quarter of the speed.
const storyTime = 8 * time.Minute

func storyContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), storyTime)
	t.Cleanup(cancel)
	return ctx
}

// boot makes a machine and waits until squid in it answers.
func (r *debians) boot(ctx context.Context, t *testing.T, label string, p provider.Provider, s provider.Spec) *machine {
	t.Helper()
	m := &machine{r: r, h: r.f.on(s.Host), p: p, spec: s, name: domain.NamesOf(s.Owner).Domain}
	m.up(ctx, t, label)
	return m
}

// up drives Create to an address, and on until squid answers.
func (m *machine) up(ctx context.Context, t *testing.T, label string) {
	t.Helper()
	m.row = m.r.row(label)
	watch, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	watching := false
	in, err := running(ctx, m.p, m.spec, func(what string) {
		m.row.said = append(m.row.said, what)
		_, text, _ := strings.Cut(what, ": ")
		switch {
		case strings.HasPrefix(text, "defined"):
			m.row.mark("defined", false)
			m.row.mark("uploaded", true)
		case strings.HasPrefix(text, "started"):
			m.row.mark("started", false)
			if !watching {
				watching = true
				wg.Go(func() { m.watchAgent(watch) })
			}
		}
	})
	if err != nil {
		t.Fatalf("%s: %v; it said %q", m.name, err, m.row.said)
	}
	m.in = in
	m.row.mark("address", false)
	for {
		got, err := fetchVia(ctx, in.Address, in.Port, m.r.page)
		if err == nil {
			m.row.mark("proxy", false)
			if !strings.HasPrefix(got, "hello "+in.Address+" via ") || !strings.Contains(got, "squid") {
				t.Errorf("the page says %q", got)
			}
			return
		}
		if !pause(ctx) {
			t.Fatalf("%s at %s: no page through the proxy: %v", m.name, in.Address, err)
		}
	}
}

func (m *machine) watchAgent(ctx context.Context) {
	for {
		if _, err := m.h.Agent(ctx, m.name, "guest-ping", nil); err == nil {
			m.row.mark("agent", false)
			return
		}
		if !pause(ctx) {
			return
		}
	}
}

// pause waits a little; false when ctx ended.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(500 * time.Millisecond):
		return true
	}
}

// looks are shell texts that show what cloud-init did, by name. What the seed
// holds is read from its disk, beside what cloud-init made of it.
var looks = map[string]string{
	"seed":     "mount -o ro /dev/sr0 /mnt && sha256sum /mnt/user-data | cut -d' ' -f1; umount /mnt",
	"user":     "sha256sum /var/lib/cloud/instance/user-data.txt | cut -d' ' -f1",
	"instance": "cat /var/lib/cloud/data/instance-id",
	"all":      "ls /var/lib/cloud/instances",
	"host":     "hostname",
	"vendor":   "ls /var/lib/cloud/instance/scripts/vendor 2>/dev/null",
	"said":     "grep -E '^(fleetdesk|user): ' /var/log/cloud-init-output.log",
	"marks":    "cat /var/tmp/marks",
	"agent":    "command -v qemu-ga",
	"errors":   "grep -A9 errors /run/cloud-init/result.json | tr -d ' \\n'",
}

// script is a shell text that shows all looks.
func script(looks map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(looks)) {
		// What comes before may have no end of a line.
		fmt.Fprintf(&b, "printf '\\n== %%s\\n' '%s'; { %s; } 2>&1\n", name, looks[name])
	}
	return b.String() + "true\n"
}

// shown takes the output of script apart.
func shown(text string) map[string]string {
	out := map[string]string{}
	for _, part := range strings.Split("\n"+text, "\n== ")[1:] {
		name, rest, _ := strings.Cut(part, "\n")
		out[name] = strings.TrimSpace(rest)
	}
	return out
}

// finished waits for the end of cloud-init and returns what there is to see,
// with those looks added.
func (m *machine) finished(ctx context.Context, t *testing.T, more map[string]string) map[string]string {
	t.Helper()
	for {
		_, err := m.h.Exec(ctx, m.name, "test -e /run/cloud-init/result.json")
		if err == nil {
			break
		}
		if !pause(ctx) {
			t.Fatalf("%s: cloud-init does not end: %v", m.name, err)
		}
	}
	m.ended(ctx)
	all := maps.Clone(looks)
	maps.Copy(all, more)
	out, err := m.h.Exec(ctx, m.name, script(all))
	if err != nil {
		t.Fatal(err)
	}
	return shown(out)
}

// ended notes when cloud-init had finished, and what QEMU had used by then.
func (m *machine) ended(ctx context.Context) {
	m.row.mark("finished", false)
	if info, err := m.h.Virsh(ctx, "dominfo", m.name); err == nil {
		_, rest, _ := strings.Cut(info, "CPU time:")
		m.row.cpu, _, _ = strings.Cut(strings.TrimSpace(rest), "\n")
	}
}

// vendorScript is the file that cloud-init makes of the script: alone, or as
// the part of an archive.
const (
	vendorScript     = "part-001"
	vendorScriptPart = "fleetdesk-guest-agent.sh"
)

// agentThere is what the script says where the image has the agent.
const agentThere = "fleetdesk: the guest agent is started"

// want compares what the guest shows with what it should: the bytes as given,
// who it is, no complaint of cloud-init's, and then the rest.
func (m *machine) want(t *testing.T, got, more map[string]string) {
	t.Helper()
	want := map[string]string{
		"seed": digest(m.spec.UserData), "user": digest(m.spec.UserData),
		"instance": m.spec.Owner.UID, "all": m.spec.Owner.UID, "host": m.name,
		"vendor": vendorScript, "agent": "/usr/sbin/qemu-ga", "errors": `"errors":[]}}`,
	}
	maps.Copy(want, more)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the guest shows (-want +got):\n%s", d)
	}
	m.byTheAgent(t)
}

// byTheAgent checks that the address is the one that the agent tells, and that
// no other source has one on a bridge.
func (m *machine) byTheAgent(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	told, err := m.h.Virsh(ctx, "domifaddr", m.name, "--source", "agent")
	if err != nil || !strings.Contains(told, domain.MACOf(m.spec.Owner)) || !strings.Contains(told, " "+m.in.Address+"/") {
		t.Errorf("the address is %s; the agent says %q, %v", m.in.Address, told, err)
	}
	lease, err := m.h.Virsh(ctx, "domifaddr", m.name, "--source", "lease")
	if err != nil || strings.TrimSpace(lease) != "" {
		t.Errorf("a lease on a bridge: %q, %v", lease, err)
	}
}

// waited checks what a person could read while the machine started.
func (m *machine) waited(t *testing.T, parts ...string) {
	t.Helper()
	for _, s := range m.row.said {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(s, p) }) {
			t.Logf("while it started: %s", s)
			return
		}
	}
	t.Errorf("no text says %q: %q", parts, m.row.said)
}

func (m *machine) delete(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := gone(ctx, m.p, provider.Ref{ID: m.in.ID, Owner: m.spec.Owner}); err != nil {
		t.Error(err)
	}
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// userSays are commands for a shell by which the user's part of the boot leaves
// its marks: in a file, and between what the vendor script says.
func userSays(what string) string {
	return "echo " + what + " >>/var/tmp/marks; echo user: " + what
}

// crlf is a text as an editor on Windows writes it.
func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

func configThenGzip(t *testing.T, r *debians) {
	ctx := storyContext(t)
	// The configuration of squid is in it, and scalars that would not survive a
	// reader and a writer of YAML.
	user := crlf(libvirthost.SquidUserData + `# A comment: Grüße
- path: /var/tmp/file
  content: "version: 1.10, 0o17, yes, ~, 12:30:45, 1_000 – Grüße"
version: 1.10 # it is no number
bootcmd: ["echo boot >>/var/tmp/marks"]
runcmd:
- "` + userSays("runcmd") + `"
`)
	s := debianSpec("same", "box-1", "debian", []byte(user))
	m := r.boot(ctx, t, "cloud-config", r.plain, s)
	m.waited(t, "started", "has no address yet", "lease: none", "guest agent: ")
	if via, err := fetchVia(ctx, m.in.Address, m.in.Port, r.page); err != nil || !strings.Contains(via, "from-user-data") {
		t.Errorf("squid is not as the user-data says: %q, %v", via, err)
	}
	m.want(t, m.finished(ctx, t, map[string]string{"file": "cat /var/tmp/file"}), map[string]string{
		"file":  "version: 1.10, 0o17, yes, ~, 12:30:45, 1_000 – Grüße",
		"marks": "boot\nruncmd", "said": agentThere + "\nuser: runcmd",
	})
	m.delete(ctx, t)

	// The Proxy is made again under its name: another UID, and cloud-init runs.
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	w.Name = "user-data.yaml"
	if _, err := w.Write([]byte("#cloud-config\n# Grüße\nversion: 1.10\nruncmd:\n- \"" + userSays("gzip") + "\"\n")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	again := debianSpec("same", "box-1", "debian", packed.Bytes())
	n := r.boot(ctx, t, "gzip, the same name again", r.plain, again)
	n.want(t, n.finished(ctx, t, nil), map[string]string{"marks": "gzip", "said": agentThere + "\nuser: gzip"})
	if n.name == m.name || n.in.ID == m.in.ID {
		t.Errorf("it is %s %s, as the one before", n.name, n.in.ID)
	}
	n.delete(ctx, t)
}

func jinjaTemplate(t *testing.T, r *debians) {
	ctx := storyContext(t)
	user := `## template: jinja
#cloud-config
# A comment with {{ v1.distro }} in it
version: 1.10
write_files:
- path: /var/tmp/file
  content: "{{ ds.meta_data.instance_id }} {{ ds.meta_data.local_hostname }} {{ v1.local_hostname }} {{ '%.2f' % 1.1 }}"
runcmd:
- "` + userSays("{{ v1.instance_id }}") + `"
`
	s := debianSpec("jinja", "box-1", "debian", []byte(user))
	m := r.boot(ctx, t, "jinja", r.plain, s)
	m.want(t, m.finished(ctx, t, map[string]string{"file": "cat /var/tmp/file"}), map[string]string{
		"file":  s.Owner.UID + " " + m.name + " " + m.name + " 1.10",
		"marks": s.Owner.UID, "said": agentThere + "\nuser: " + s.Owner.UID,
	})
	m.delete(ctx, t)
}

// mimeArchive has the boundary that the provider's own archive would take, and
// that archive beside it.
func mimeArchive(t *testing.T, r *debians) {
	ctx := storyContext(t)
	user := `Content-Type: multipart/mixed; boundary="=_fleetdesk_0"
MIME-Version: 1.0

--=_fleetdesk_0
Content-Type: text/cloud-config; charset="utf-8"

#cloud-config
version: 1.10
bootcmd: ["echo boot >>/var/tmp/marks"]
runcmd:
- "` + userSays("runcmd") + `"
--=_fleetdesk_0
Content-Type: text/x-shellscript; charset="utf-8"
Content-Disposition: attachment; filename="script.sh"

#!/bin/sh
` + userSays("script") + `
--=_fleetdesk_0--
`
	s := debianSpec("mime", "box-2", "debian", []byte(user))
	m := r.boot(ctx, t, "MIME archive, own vendor data", r.own, s)
	m.want(t, m.finished(ctx, t, vendorLooks), vendored(map[string]string{
		"marks": "boot\nruncmd\nscript", "said": agentThere + "\nuser: runcmd\nuser: script",
	}))
	m.delete(ctx, t)
}

// largeScript is as large as a Secret can be.
func largeScript(t *testing.T, r *debians) {
	ctx := storyContext(t)
	user := []byte("#!/bin/sh\n# version: 1.10 – Grüße\n" + userSays("script") + "\nexit 0\n")
	for line := 0; len(user) < 1<<20; line++ {
		user = fmt.Appendf(user, "%07d the rest is data, as in archives that unpack themselves\n", line)
	}
	user = user[:1<<20]
	s := debianSpec("script", "box-2", "debian", user)
	m := r.boot(ctx, t, "script of 1 MiB, own vendor data", r.own, s)
	m.want(t, m.finished(ctx, t, vendorLooks), vendored(map[string]string{
		"marks": "script", "said": agentThere + "\nuser: script",
	}))
	m.delete(ctx, t)
}

// vendorLooks show what became of the configuration's own vendor data.
var vendorLooks = map[string]string{
	"own":  "cat /var/tmp/vendor",
	"sent": "sha256sum /var/lib/cloud/instance/vendor-data.txt | cut -d' ' -f1",
}

func vendored(want map[string]string) map[string]string {
	want["vendor"] = vendorScriptPart
	want["own"] = "version: 1.10 – Grüße aus Zürich → 世界"
	want["sent"] = digest(seed.VendorData(true, []byte(ownVendor)))
	return want
}

// agentFromARepository: the image has no agent, and the script brings it. Then
// the machine is off and on again: the agent is there by itself, and cloud-init
// does not do again what it did.
func agentFromARepository(t *testing.T, r *debians) {
	ctx := storyContext(t)
	user := `#cloud-config
apt:
  sources:
    tests: {source: "deb [trusted=yes] ` + r.packages + `/ ./"}
packages: [libnuma1]
bootcmd: ["echo boot >>/var/tmp/marks"]
runcmd:
- "` + userSays("$(command -v qemu-ga)") + `"
`
	s := debianSpec("bare", "box-1", "bare", []byte(user))
	m := r.boot(ctx, t, "agent from a repository", r.plain, s)
	m.waited(t, "started", "has no address yet", "lease: none", "guest agent: ", "not connected")
	more := map[string]string{"packages": "sed -n 's/.* status installed \\(libnuma1\\|qemu-guest-agent\\):amd64 .*/\\1/p' /var/log/dpkg.log"}
	want := map[string]string{
		"packages": "libnuma1\nqemu-guest-agent",
		"marks":    "boot\n/usr/sbin/qemu-ga",
		"said":     "fleetdesk: the guest agent is installed\n" + agentThere + "\nuser: /usr/sbin/qemu-ga",
	}
	m.want(t, m.finished(ctx, t, more), want)

	if _, err := m.h.Virsh(ctx, "shutdown", m.name, "--mode=agent"); err != nil {
		t.Fatal(err)
	}
	for {
		got, err := m.p.Get(ctx, provider.Ref{ID: m.in.ID, Owner: s.Owner})
		if err == nil && got.State == provider.Stopped {
			break
		}
		if !pause(ctx) {
			t.Fatalf("it does not stop: %+v, %v", got, err)
		}
	}
	first := m.in
	m.up(ctx, t, "the same, stopped and started")
	if m.in.ID != first.ID || !m.in.Created.Equal(first.Created) {
		t.Errorf("it was %+v and is %+v", first, m.in)
	}
	want["marks"] = "boot\n/usr/sbin/qemu-ga\nboot"
	m.want(t, m.finished(ctx, t, more), want)
	m.delete(ctx, t)
}

// noScript: without installGuestAgent nothing of ours is in the guest. On
// libvirt's own network the address comes from its lease. The guest tells by
// itself what it is, since nobody can ask.
func noScript(t *testing.T, r *debians) {
	ctx := storyContext(t)
	seen := maps.Clone(looks)
	maps.DeleteFunc(seen, func(name, _ string) bool { return name == "errors" })
	seen["agent"] = "command -v qemu-ga || echo none"
	seen["sent"] = "cat /var/lib/cloud/instance/vendor-data.txt"
	var indented strings.Builder
	for line := range strings.Lines(script(seen)) {
		indented.WriteString("    " + line)
	}
	user := `#cloud-config
write_files:
- path: /usr/local/sbin/looks
  content: |
` + indented.String() + `
- path: /usr/local/sbin/report
  content: |
    b=$(sh /usr/local/sbin/looks)
    exec 3<>` + r.reportTo + `
    printf 'POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s' "$(printf %s "$b" | wc -c)" "$b" >&3
    cat <&3
runcmd:
- "` + userSays("runcmd") + `"
- "bash /usr/local/sbin/report"
`
	s := debianSpec("off", "box-3", "bare", []byte(user))
	m := r.boot(ctx, t, "no script, no agent, a lease", r.off, s)
	m.waited(t, "started", "has no address yet", "lease: none", "guest agent: ", "not connected")
	var got map[string]string
	select {
	case text := <-r.reports:
		got = shown(text)
	case <-ctx.Done():
		t.Fatal("the guest does not report")
	}
	m.ended(ctx)
	want := map[string]string{
		"seed": digest(s.UserData), "user": digest(s.UserData), "instance": s.Owner.UID, "all": s.Owner.UID, "host": m.name,
		"vendor": "", "sent": "", "said": "user: runcmd", "marks": "runcmd", "agent": "none",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the guest shows (-want +got):\n%s", d)
	}
	lease, err := m.h.Virsh(ctx, "domifaddr", m.name, "--source", "lease")
	if err != nil || !strings.Contains(lease, " "+m.in.Address+"/") || !strings.HasPrefix(m.in.Address, "10.98.3.") {
		t.Errorf("the address is %s; the lease says %q, %v", m.in.Address, lease, err)
	}
	if _, err := m.h.Agent(ctx, m.name, "guest-ping", nil); err == nil {
		t.Error("an agent answers")
	}
	m.delete(ctx, t)
}
