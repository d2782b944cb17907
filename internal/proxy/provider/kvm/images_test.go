package kvm_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// failure repeats Create until it fails, and returns how.
func failure(t *testing.T, p provider.Provider, s provider.Spec) error {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		in, err := p.Create(t.Context(), s)
		switch {
		case err != nil:
			return err
		case in.State == provider.Running:
			t.Fatalf("it runs: %+v", in)
		case time.Now().After(end):
			t.Fatalf("still %+v", in)
		}
	}
}

// Whatever is wrong with what comes from an image's URL, the Proxy gets an
// error of the right class that says so, no half volume stays on the host, and
// once it is put right the same Proxy comes up.
func TestBadImagesLeaveNoHalfVolume(t *testing.T) {
	good := virttest.Qcow2(2 << 30)
	backing := append([]byte{}, good...)
	binary.BigEndian.PutUint64(backing[8:], 512)
	binary.BigEndian.PutUint32(backing[16:], 11)
	copy(backing[512:], "/etc/shadow")
	data := append([]byte{}, good...)
	binary.BigEndian.PutUint64(data[72:], 4) // the feature "external data file"
	write := func(b []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b) }
	}
	for name, tc := range map[string]struct {
		reason string
		serve  http.HandlerFunc
		class  fault.Class
		want   string
	}{
		"partial download": {"terraform-provider-libvirt 494, 308: cut in mid-download", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(good)))
			_, _ = w.Write(good[:len(good)/2])
			panic(http.ErrAbortHandler)
		}, fault.Transient, "unexpected end"},
		"404":               {"terraform-provider-libvirt 958: an error page is no image", http.NotFound, fault.Permanent, "404"},
		"503":               {"the server may come back", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusServiceUnavailable) }, fault.Transient, "503"},
		"HTML":              {"an error page with status 200", write([]byte("<!DOCTYPE html><html><body>Please log in</body></html>")), fault.Permanent, "HTML"},
		"wrong checksum":    {"containerized-data-importer 4010: noticed before use", write(append(append([]byte{}, good...), 0)), fault.Permanent, "sha256"},
		"backing file":      {"lima 5441, cloudstack 11260: the host would read a file of its own into the guest", write(backing), fault.Permanent, "backing file"},
		"data file":         {"cloudstack 11260: as well", write(data), fault.Permanent, "data file"},
		"compressed":        {"nobody unpacks it", write([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03abcdefgh")), fault.Permanent, "gzip"},
		"nothing":           {"an empty answer", write(nil), fault.Permanent, "empty"},
		"not qcow2 at all":  {"a promise not kept", write([]byte(strings.Repeat("not an image ", 100))), fault.Permanent, "qcow2"},
		"connection closed": {"the server died", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, fault.Transient, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMem(t, "box-1")
			p := m.open(t)
			m.answer(tc.serve)
			s := m.spec("a", "box-1")
			err := failure(t, p, s)
			if fault.Of(err) != tc.class || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(tc.want)) || !strings.Contains(err.Error(), "debian-13") {
				t.Errorf("%s: got %s: %v; want %s with %q and the image's name", tc.reason, fault.Of(err), err, tc.class, tc.want)
			}
			if left := m.halves("box-1"); len(left) > 0 {
				t.Errorf("%s: left on the host: %q", tc.reason, left)
			}
			m.answer(nil)
			m.advance(time.Minute) // the failure answers no more
			up(t, p, s)
			down(t, p, provider.Ref{Owner: s.Owner})
		})
	}
}

// What goes wrong on the way to the host: the same.
func TestUploadsThatFailOnTheHost(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		harm   func(h *virttest.Host)
		class  []fault.Class
		want   string
	}{
		"pool fills up": {"the true cause, not 'stream aborted'", func(h *virttest.Host) {
			h.OnUpload(func(u virttest.Upload) error {
				if strings.Contains(u.Volume, "fleetdesk-image") && u.Accepted > 100<<10 {
					return virt.Fault(virt.CodeSystemError, "cannot write data to volume: No space left on device")
				}
				return nil
			})
		}, []fault.Class{fault.Quota}, "No space left on device"},
		"link drops": {"cut in mid-upload", func(h *virttest.Host) {
			once := sync.OnceFunc(h.DropLinks)
			h.OnUpload(func(u virttest.Upload) error {
				if u.Accepted > 100<<10 {
					go once()
				}
				return nil
			})
		}, []fault.Class{fault.Unavailable}, "ended"},
		"the end does not fit": {"libvirt answers OK when the pool fills up with the last packet", func(h *virttest.Host) {
			h.OnUpload(func(u virttest.Upload) error {
				if strings.Contains(u.Volume, "fleetdesk-image") && u.Accepted >= 1<<20+1<<18-64<<10 {
					h.FillPool(10)
				}
				return nil
			})
		}, []fault.Class{fault.Transient, fault.Quota}, "were sent"},
		"bytes that do not arrive": {"go-libvirt 82: what is stored differs from what was sent", func(h *virttest.Host) {
			once := sync.Once{}
			h.OnDone(func(rpc string) error {
				if rpc == "virStorageVolUpload" {
					once.Do(func() {
						for _, v := range h.Volumes("default") {
							if strings.Contains(v.Name, "fleetdesk-image") {
								h.PlantVolume("default", v.Name, "raw", []byte("short"))
							}
						}
					})
				}
				return nil
			})
		}, []fault.Class{fault.Transient}, "5 bytes, and"},
		"asynchronous jobs": {"virt-manager 498", func(h *virttest.Host) {
			h.FailNext("StorageVolCreateXML", virt.Fault(virt.CodeInternalError, "internal error: pool 'default' has asynchronous jobs running."))
		}, []fault.Class{fault.Transient}, "asynchronous jobs"},
		"the marker cannot be made": {"an image without its mark is none", func(h *virttest.Host) {
			h.FailKth("StorageVolCreateXML", 2, virt.Fault(virt.CodeSystemError, "cannot create path: Input/output error"))
		}, []fault.Class{fault.Transient, fault.Permanent}, "Input/output error"},
		"no room from the start": {"it is said before anything is sent", func(h *virttest.Host) { h.FillPool(lowSpace + 1) }, []fault.Class{fault.Quota}, "free"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMem(t, "box-1")
			h := m.hosts["box-1"]
			image := append(virttest.Qcow2(2<<30), make([]byte, 1<<20)...)
			m.setImage(image)
			if name == "no room from the start" {
				m.answer(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Length", fmt.Sprint(int64(3)<<30))
					_, _ = w.Write(image)
				})
			}
			p := m.open(t)
			tc.harm(h)
			s := m.spec("a", "box-1")
			err := failure(t, p, s)
			ok := false
			for _, c := range tc.class {
				ok = ok || fault.Of(err) == c
			}
			if !ok || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %s: %v; want %s with %q", tc.reason, fault.Of(err), err, tc.class, tc.want)
			}
			m.answer(nil)
			h.OnUpload(nil)
			h.OnDone(nil)
			h.FillPool(100 << 30)
			m.advance(time.Minute)
			up(t, p, s)
			if left := m.halves("box-1"); len(left) > 0 {
				t.Errorf("%s: left on the host: %q", tc.reason, left)
			}
		})
	}
}

// lowSpace is the free space below which nothing is made.
const lowSpace = 1 << 30

func (m *mem) setImage(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.image = b
	sum := sha256.Sum256(b)
	i := m.section.Images["debian-13"]
	i.SHA256 = hex.EncodeToString(sum[:])
	m.section.Images["debian-13"] = i
}

// However many Proxies wait for an image on a host, it is fetched and uploaded
// once there; another host gets its own.
func TestOneUploadForEachImageAndHost(t *testing.T) {
	m := newMem(t, "box-1", "box-2")
	p := m.open(t)
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() { _, errs[i] = tryUp(t.Context(), p, m.spec(fmt.Sprint("p", i), m.names()[i%2])) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := m.requests(); n != 2 {
		t.Errorf("the image was asked for %d times; want 2, one for each host", n)
	}
	for _, host := range m.names() {
		if left := m.halves(host); len(left) > 0 {
			t.Errorf("%s: %q", host, left)
		}
	}
}

// An operator that dies in mid-upload leaves half a volume; the next one does
// not take it for the image, fetches anew, and clears the half away.
func TestAHalfUploadIsNoImage(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	m.setImage(append(virttest.Qcow2(2<<30), make([]byte, 1<<20)...))
	h.StallUploads(200 << 10)
	p := m.open(t)
	s := m.spec("a", "box-1")
	for end := time.Now().Add(10 * time.Second); len(m.halves("box-1")) == 0; time.Sleep(time.Millisecond) {
		if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Provisioning {
			t.Fatalf("%+v, %v", in, err)
		}
		if time.Now().After(end) {
			t.Fatal("no upload begins")
		}
	}
	// It dies: its connections end, and nothing is tidied up.
	h.FailNext("StorageVolDelete", virt.Fault(virt.CodeSystemError, "dead"))
	_ = p.Close()
	h.Mend()
	half := m.halves("box-1")
	if len(half) != 1 {
		t.Fatalf("the dead operator left %q; want half an image", half)
	}
	h.DropLinks()
	q := m.open(t)
	up(t, q, s)
	if left := m.halves("box-1"); len(left) > 0 {
		t.Errorf("still there: %q", left)
	}
	if n := m.requests(); n != 2 {
		t.Errorf("the image was asked for %d times; want 2", n)
	}
}

// A new checksum is a new image beside the old one, on which machines stand.
func TestAChangedImageReplacesNothing(t *testing.T) {
	m := newMem(t, "box-1")
	p := m.open(t)
	a := m.spec("a", "box-1")
	up(t, p, a)
	base := m.base(t, a)
	was := string(m.hosts["box-1"].Content("default", base))

	m.setImage(append(virttest.Qcow2(3<<30), 1, 2, 3))
	q := m.open(t)
	b := m.spec("b", "box-1")
	up(t, q, b)
	up(t, q, a)
	if m.base(t, b) == base {
		t.Error("another image got the same volume")
	}
	if m.base(t, a) != base || string(m.hosts["box-1"].Content("default", base)) != was {
		t.Error("the volume that a machine stands on was changed")
	}
	c := m.spec("c", "box-1")
	up(t, q, c)
	if m.base(t, c) != m.base(t, b) || m.requests() != 2 {
		t.Errorf("an image that is there was fetched again: %d requests", m.requests())
	}
}

// base is the volume that an owner's disk was made on.
func (m *mem) base(t *testing.T, s provider.Spec) string {
	t.Helper()
	for _, v := range m.hosts[s.Host].Volumes("default") {
		if strings.HasPrefix(v.Name, nameOf(provider.Instance{Owner: s.Owner})) && v.Backing != "" {
			if v.BackingFormat != "qcow2" {
				t.Errorf("terraform-provider-libvirt 699: the disk's backing format is %q", v.BackingFormat)
			}
			return v.Backing[strings.LastIndex(v.Backing, "/")+1:]
		}
	}
	t.Fatalf("%s has no disk on an image", s.Owner.Name)
	return ""
}

// Two installations that share a pool do not share, nor remove, uploads.
func TestTwoInstallationsUploadBesideEachOther(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.StallUploads(1)
	p := m.open(t)
	a := m.spec("a", "box-1")
	if in, err := p.Create(t.Context(), a); err != nil || in.State != provider.Provisioning {
		t.Fatalf("%+v, %v", in, err)
	}
	for end := time.Now().Add(10 * time.Second); len(m.halves("box-1")) == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	q := m.open(t)
	b := m.spec("b", "box-1")
	b.Owner.Installation = "another/fleetdesk"
	if in, err := q.Create(t.Context(), b); err != nil || in.State != provider.Provisioning {
		t.Fatalf("%+v, %v", in, err)
	}
	h.Mend()
	up(t, p, a)
	up(t, q, b)
	if m.base(t, a) == m.base(t, b) {
		t.Error("two installations stand on one volume: the one's sweep would take it from the other")
	}
	if left := m.halves("box-1"); len(left) > 0 || m.requests() != 2 {
		t.Errorf("halves %q, %d requests", left, m.requests())
	}
	rows, err := p.ListByTag(t.Context(), tag)
	if err != nil || len(rows[0].Instances) != 1 || rows[0].Instances[0].Owner != a.Owner {
		t.Errorf("the list shows %+v, %v", rows, err)
	}
}

func TestDisks(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		ask    int64
		want   uint64
		class  fault.Class
	}{
		"left out":  {"the image's own size", 0, 2 << 30, ""},
		"larger":    {"terraform-provider-libvirt 741, 1350: what was asked for", 10 << 30, 10 << 30, ""},
		"too small": {"terraform-provider-libvirt 561: a disk below its base would be cut", 1 << 30, 0, fault.Permanent},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMem(t, "box-1")
			p := m.open(t)
			s := m.spec("a", "box-1")
			s.Resources.DiskBytes = tc.ask
			if tc.class != "" {
				err := failure(t, p, s)
				if fault.Of(err) != tc.class || !strings.Contains(err.Error(), "resources.disk: 1024 MiB is less than image debian-13 needs (2048 MiB)") {
					t.Errorf("%s: %s: %v", tc.reason, fault.Of(err), err)
				}
				return
			}
			up(t, p, s)
			for _, v := range m.hosts["box-1"].Volumes("default") {
				if v.Backing != "" && v.Capacity != tc.want {
					t.Errorf("%s: the disk has %d bytes; want %d", tc.reason, v.Capacity, tc.want)
				}
			}
		})
	}
}

// What placement.image may be.
func TestPlacementImage(t *testing.T) {
	m := newMem(t, "box-1")
	m.section.Images["other"] = m.section.Images["debian-13"]
	none := m.open(t)
	m.section.DefaultImage = "other"
	p := m.open(t)
	direct := m.section.Images["other"].URL
	for name, tc := range map[string]struct {
		p     *kvm.Provider
		image string
		want  string
	}{
		"a key":          {p, "debian-13", ""},
		"the default":    {p, "", ""},
		"no default":     {none, "", `provider "home" has no defaultImage: name one of its images (debian-13, other) or give a URL`},
		"unknown key":    {p, "debian-14", `placement.image "debian-14" is none of the images of provider "home" (debian-13, other), and no URL`},
		"a URL, http":    {p, direct, "sha256"},
		"a bad URL":      {p, "ftp://images.example.com/a", "placement.image: the image's URL begins with ftp:"},
		"private ranges": {p, "https://10.1.2.3/a.qcow2", "imageAllowCIDRs"},
		"metadata":       {p, "https://169.254.169.254/latest", "imageAllowCIDRs"},
	} {
		t.Run(name, func(t *testing.T) {
			s := m.spec(name, "box-1")
			s.Image = tc.image
			if tc.want == "" {
				up(t, tc.p, s)
				return
			}
			err := failure(t, tc.p, s)
			if c := fault.Of(err); c != fault.Invalid && c != fault.Permanent || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v; want Invalid or Permanent with %q", c, err, tc.want)
			}
		})
	}
}

// A marker that somebody removed makes the volume look like half an image. As
// long as machines stand on it, it stays.
func TestALostMarkerIsNoReasonToRemoveABase(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	a := m.spec("a", "box-1")
	up(t, p, a)
	base := m.base(t, a)
	c := h.Link()
	for _, v := range h.Volumes("default") {
		if strings.HasPrefix(v.Name, base+".") {
			if err := c.StorageVolDelete(t.Context(), virt.Volume{Pool: "default", Name: v.Name, Key: v.Path}); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = c.Close()
	q := m.open(t)
	b := m.spec("b", "box-1")
	// Also while it cannot be read what they stand on.
	undo := h.CorruptMetadata(domain.NamesOf(a.Owner).Domain)
	if err := failure(t, q, b); fault.Of(err) != fault.Transient || !strings.Contains(err.Error(), "what a machine stands on") {
		t.Errorf("%s: %v; want Transient", fault.Of(err), err)
	}
	undo()
	m.advance(time.Minute) // the failure answers no more
	up(t, q, b)
	if m.base(t, b) == base {
		t.Error("an image without marker was used")
	}
	if m.base(t, a) != base || h.Content("default", base) == nil {
		t.Error("the volume that a machine stands on was removed")
	}
}

// While one image is uploaded slowly, a machine on an image that is there comes
// up: its seed does not wait.
func TestASlowUploadHoldsUpNoOther(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	there := m.section.Images["debian-13"]
	m.section.DefaultImage = "debian-13"
	for i := range 3 {
		other := there
		other.URL += fmt.Sprint("?", i)
		m.section.Images[fmt.Sprint("slow-", i)] = other
	}
	p := m.open(t)
	up(t, p, m.spec("first", "box-1"))
	h.OnUpload(func(u virttest.Upload) error {
		if strings.Contains(u.Volume, "fleetdesk-image") {
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	})
	m.setAnswer(append(virttest.Qcow2(2<<30), make([]byte, 16<<20)...))
	for i := range 3 {
		s := m.spec(fmt.Sprint("slow", i), "box-1")
		s.Image = fmt.Sprint("slow-", i)
		if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Provisioning {
			t.Fatalf("%+v, %v", in, err)
		}
	}
	for end := time.Now().Add(10 * time.Second); len(m.halves("box-1")) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no upload begins")
		}
	}
	up(t, p, m.spec("quick", "box-1"))
	if n := len(m.halves("box-1")); n != 1 {
		t.Errorf("%d uploads of images run at once; want one, and that it still runs", n)
	}
}

// setAnswer changes what the server gives, and not what is expected.
func (m *mem) setAnswer(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.image = b
}

// The host is cut off in mid-upload, and nobody wants the image any more: once
// it answers again, the half volume goes all the same.
func TestAHalfVolumeGoesWhenItsHostAnswersAgain(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	m.setImage(append(virttest.Qcow2(2<<30), make([]byte, 1<<20)...))
	p := m.open(t)
	s := m.spec("a", "box-1")
	once := sync.OnceFunc(h.Break)
	h.OnUpload(func(u virttest.Upload) error {
		if u.Accepted > 200<<10 {
			go once()
		}
		return nil
	})
	if err := failure(t, p, s); fault.Of(err) != fault.Unavailable {
		t.Errorf("%s: %v", fault.Of(err), err)
	}
	if n := len(m.halves("box-1")); n != 1 {
		t.Fatalf("%d halves", n)
	}
	h.OnUpload(nil)
	h.Mend()
	for end := time.Now().Add(15 * time.Second); len(m.halves("box-1")) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still there: %q", m.halves("box-1"))
		}
	}
}
