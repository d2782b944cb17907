package virttest

import (
	"encoding/xml"
	"fmt"
	"path"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

func testPool(b *bench) {
	p := b.pool()
	if p.Name != b.s.Pool || p.UUID == "" {
		b.Errorf("the pool is %+v", p)
	}
	none, err := b.c.StoragePoolLookupByName(b.ctx, b.name("none"))
	b.wants("a pool that is not there", err, virt.CodeNoStoragePool)
	if none != (virt.Pool{}) {
		b.Errorf("%+v beside the error", none)
	}
	info, err := b.c.StoragePoolGetInfo(b.ctx, p)
	b.ok("its info", err)
	if info.State != virt.PoolRunning || info.Capacity == 0 || info.Available == 0 || info.Available > info.Capacity || info.Allocation > info.Capacity {
		b.Errorf("its info is %+v", info)
	}
	text, err := b.c.StoragePoolGetXMLDesc(b.ctx, p)
	b.ok("its document", err)
	var doc struct {
		XMLName xml.Name `xml:"pool"`
		Type    string   `xml:"type,attr"`
		Name    string   `xml:"name"`
		UUID    string   `xml:"uuid"`
		Path    string   `xml:"target>path"`
	}
	b.ok("reading its document", xml.Unmarshal([]byte(text), &doc))
	if doc.Type == "" || doc.Name != p.Name || doc.UUID != p.UUID || !path.IsAbs(doc.Path) {
		b.Errorf("its document says %+v", doc)
	}
	v := b.volume("raw", 0, "")
	if got := b.path(v); got != path.Join(doc.Path, v.Name) {
		b.Errorf("a volume is at %s, not in %s", got, doc.Path)
	}

	gone := virt.Pool{Name: b.name("gone"), UUID: newUUID()}
	_, err = b.c.StoragePoolGetInfo(b.ctx, gone)
	b.wants("info of a pool that is gone", err, virt.CodeNoStoragePool)
	_, err = b.c.StoragePoolGetXMLDesc(b.ctx, gone)
	b.wants("document of a pool that is gone", err, virt.CodeNoStoragePool)
	_, err = b.c.StoragePoolListAllVolumes(b.ctx, gone)
	b.wants("volumes of a pool that is gone", err, virt.CodeNoStoragePool)
	_, err = b.c.StorageVolLookupByName(b.ctx, gone, v.Name)
	b.wants("a volume in a pool that is gone", err, virt.CodeNoStoragePool)
	_, err = b.c.StorageVolCreateXML(b.ctx, gone, volumeDoc(b.name("v"), "raw", 0, ""))
	b.wants("a new volume in a pool that is gone", err, virt.CodeNoStoragePool)
	// What counts is the UUID.
	_, err = b.c.StoragePoolGetInfo(b.ctx, virt.Pool{Name: "other", UUID: p.UUID})
	b.ok("info by its UUID alone", err)
}

// listed are the volumes of this test in the pool's list.
func (b *bench) listed() map[string]virt.Volume {
	b.Helper()
	all, err := b.c.StoragePoolListAllVolumes(b.ctx, b.pool())
	b.ok("the volumes", err)
	out := map[string]virt.Volume{}
	for _, v := range all {
		if strings.HasPrefix(v.Name, b.prefix) {
			if _, twice := out[v.Name]; twice {
				b.Errorf("%s is listed twice", v.Name)
			}
			out[v.Name] = v
		}
	}
	return out
}

func testVolumes(b *bench) {
	p := b.pool()
	name := b.name("raw")
	_, err := b.c.StorageVolLookupByName(b.ctx, p, name)
	b.wants("a volume that is not there", err, virt.CodeNoStorageVol)
	if n := len(b.listed()); n != 0 {
		b.Errorf("%d volumes before there is one", n)
	}
	v, err := b.c.StorageVolCreateXML(b.ctx, p, volumeDoc(name, "raw", 4096, ""))
	b.ok("making it", err)
	b.discard(v)
	if v.Name != name || v.Pool != p.Name || v.Key != b.path(v) {
		b.Errorf("it is %+v", v)
	}
	found, err := b.c.StorageVolLookupByName(b.ctx, p, name)
	if b.ok("looking it up", err); found != v {
		b.Errorf("found %+v, made %+v", found, v)
	}
	second := b.volume("qcow2", 1<<20, "")
	if got := b.listed(); len(got) != 2 || got[name] != v || got[second.Name] != second {
		b.Errorf("the list has %+v", got)
	}

	b.ok("upload", b.c.StorageVolUpload(b.ctx, v, strings.NewReader("first"), 5))
	for _, doc := range []string{volumeDoc(name, "raw", 4096, ""), volumeDoc(name, "qcow2", 1<<20, "")} {
		none, err := b.c.StorageVolCreateXML(b.ctx, p, doc)
		b.wants("making it again", err, virt.CodeStorageVolExist)
		b.isClass("making it again", err, fault.Conflict)
		if none != (virt.Volume{}) {
			b.Errorf("%+v beside the error", none)
		}
	}
	if i := b.info(v); i != (virt.VolumeInfo{Capacity: 4096, Physical: 4096}) {
		b.Errorf("a refused volume changed the one that was there: %+v", i)
	}
	b.wantsContent(v, "first"+strings.Repeat("\x00", 4091))

	b.ok("delete", b.c.StorageVolDelete(b.ctx, v))
	if got := b.listed(); len(got) != 1 {
		b.Errorf("the list has %+v", got)
	}
	b.wants("deleting it again", b.c.StorageVolDelete(b.ctx, v), virt.CodeNoStorageVol)
	_, err = b.c.StorageVolLookupByName(b.ctx, p, name)
	b.wants("looking up what is gone", err, virt.CodeNoStorageVol)
	_, err = b.c.StorageVolGetInfo(b.ctx, v)
	b.wants("sizes of what is gone", err, virt.CodeNoStorageVol)
	_, err = b.c.StorageVolGetPath(b.ctx, v)
	b.wants("path of what is gone", err, virt.CodeNoStorageVol)
	b.wants("upload to what is gone", b.c.StorageVolUpload(b.ctx, v, strings.NewReader("x"), 0), virt.CodeNoStorageVol)
	// The same name is free again.
	again, err := b.c.StorageVolCreateXML(b.ctx, p, volumeDoc(name, "raw", 1, ""))
	if b.ok("making it anew", err); again != v {
		b.Errorf("anew it is %+v, was %+v", again, v)
	}

	// Names and pools count, not keys: what names another volume's key is not it.
	lost := virt.Volume{Pool: p.Name, Name: b.name("none"), Key: second.Key}
	b.wants("deleting by another's key", b.c.StorageVolDelete(b.ctx, lost), virt.CodeNoStorageVol)
	lost = virt.Volume{Pool: b.name("none"), Name: second.Name, Key: second.Key}
	b.wants("deleting in another pool", b.c.StorageVolDelete(b.ctx, lost), virt.CodeNoStoragePool)
	b.info(second)
}

func testVolumeSizes(b *bench) {
	p := b.pool()
	for _, tc := range []struct {
		format             string
		capacity           uint64
		capacityIs, fileIs uint64
	}{
		{"raw", 0, 0, 0},
		{"raw", 1, 1, 1},
		{"raw", 1 << 20, 1 << 20, 1 << 20},
		{"qcow2", 1 << 20, 1 << 20, 0},
		{"qcow2", 8 << 30, 8 << 30, 0},
		{"qcow2", 1, 1024, 0},
	} {
		i := b.info(b.volume(tc.format, tc.capacity, ""))
		if i.Capacity != tc.capacityIs || tc.fileIs != i.Physical && tc.format == "raw" {
			b.Errorf("%s of %d: %+v", tc.format, tc.capacity, i)
		}
		if tc.format == "qcow2" && (i.Physical < 1<<16 || i.Physical > 1<<20) {
			b.Errorf("a qcow2 with nothing in it has %d bytes", i.Physical)
		}
	}
	v, err := b.c.StorageVolCreateXML(b.ctx, p, "<volume><name>"+b.name("mib")+"</name><capacity unit='MiB'>2</capacity><target><format type='qcow2'/><compat>1.1</compat></target></volume>")
	b.ok("a capacity in MiB", err)
	b.discard(v)
	if i := b.info(v); i.Capacity != 2<<20 {
		b.Errorf("2 MiB became %d", i.Capacity)
	}

	base := b.volume("qcow2", 1<<20, "")
	over := b.volume("qcow2", 2<<20, backing(b.path(base), "qcow2"))
	if i := b.info(over); i.Capacity != 2<<20 {
		b.Errorf("an overlay of 2 MiB has %d", i.Capacity)
	}
	// Nothing refuses one that is too small: that is for the caller to know.
	small := b.volume("qcow2", 1<<16, backing(b.path(base), "qcow2"))
	if i := b.info(small); i.Capacity != 1<<16 {
		b.Errorf("an overlay of 64 KiB has %d", i.Capacity)
	}
	if i := b.info(base); i.Capacity != 1<<20 {
		b.Errorf("the base became %+v", i)
	}

	// An image that was uploaded serves as a base, also one that is raw to libvirt.
	img := Qcow2(16 << 20)
	up := b.volume("raw", 0, "")
	b.ok("upload", b.c.StorageVolUpload(b.ctx, up, strings.NewReader(string(img)), uint64(len(img))))
	b.soonSized(up, virt.VolumeInfo{Capacity: 16 << 20, Physical: uint64(len(img))})
	on := b.volume("qcow2", 32<<20, backing(b.path(up), "qcow2"))
	if i := b.info(on); i.Capacity != 32<<20 {
		b.Errorf("an overlay on it has %+v", i)
	}
	d := b.define(shape{devices: fileDisk(b.path(on), "qcow2")})
	b.ok("starting from it", b.c.DomainCreate(b.ctx, d))
	b.wantsState(d, virt.StateRunning)
}

// soonSized waits for the sizes of a volume that got an image: libvirt looks
// what it is some time after the upload, and takes the file's length for the
// capacity until then.
func (b *bench) soonSized(v virt.Volume, want virt.VolumeInfo) {
	b.Helper()
	var got virt.VolumeInfo
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var err error
		got, err = b.c.StorageVolGetInfo(b.ctx, v)
		b.ok("the sizes", err)
		if got == want {
			return
		}
		if got.Physical != want.Physical {
			break
		}
	}
	b.Errorf("an uploaded image has %+v, want %+v", got, want)
}

func testVolumeRefuses(b *bench) {
	p := b.pool()
	raw := b.volume("raw", 1<<20, "")
	dir := path.Dir(b.path(raw))
	name := b.name("bad")
	for _, tc := range []struct {
		what, doc string
		code      virt.Code
	}{
		{"text", "hello", codeXMLDetail},
		{"nothing", "", codeXMLDetail},
		{"a cut document", "<volume><name>" + name, codeXMLDetail},
		{"another document", "<pool><name>x</name></pool>", virt.CodeXMLError},
		{"no name", "<volume><capacity>1</capacity></volume>", virt.CodeXMLError},
		{"an empty name", volumeDoc("", "raw", 1, ""), virt.CodeXMLError},
		{"a name with a slash", volumeDoc("a/"+name, "raw", 1, ""), virt.CodeOperationInvalid},
		{"the folder above", volumeDoc("..", "raw", 1, ""), virt.CodeOperationInvalid},
		{"a name that is too long", volumeDoc(strings.Repeat("n", 300), "raw", 1, ""), virt.CodeSystemError},
		{"no capacity", "<volume><name>" + name + "</name></volume>", virt.CodeXMLError},
		{"a capacity in words", "<volume><name>" + name + "</name><capacity>lots</capacity></volume>", virt.CodeXMLError},
		{"a capacity below zero", "<volume><name>" + name + "</name><capacity>-5</capacity></volume>", virt.CodeXMLError},
		{"a capacity in parsecs", "<volume><name>" + name + "</name><capacity unit='parsec'>2</capacity></volume>", virt.CodeInvalidArg},
		{"a format that nobody knows", volumeDoc(name, "nonsense", 1, ""), virt.CodeConfigUnsupported},
		{"a capacity beyond reason", volumeDoc(name, "qcow2", 1<<62, ""), virt.CodeInternalError},
		{"a base that is not there", volumeDoc(name, "qcow2", 1<<20, backing(dir+"/"+b.name("none"), "qcow2")), virt.CodeSystemError},
		{"a base of another format", volumeDoc(name, "qcow2", 1<<20, backing(b.path(raw), "qcow2")), virt.CodeInternalError},
		{"a base below raw", volumeDoc(name, "raw", 1<<20, backing(b.path(raw), "raw")), virt.CodeNoSupport},
	} {
		v, err := b.c.StorageVolCreateXML(b.ctx, p, tc.doc)
		b.wants(tc.what, err, tc.code)
		if err == nil {
			b.discard(v)
		}
	}
	if got := b.listed(); len(got) != 1 {
		b.Errorf("a refused volume is there: %+v", got)
	}
	_, err := b.c.StorageVolLookupByName(b.ctx, p, name)
	b.wants("looking up what was refused", err, virt.CodeNoStorageVol)
}

// wantsContent compares a volume's bytes, where the subject can read them.
func (b *bench) wantsContent(v virt.Volume, want string) {
	b.Helper()
	if b.s.Content == nil {
		return
	}
	if got := b.s.Content(b.T, v.Pool, v.Name); string(got) != want {
		b.Errorf("%s has %d bytes (%.40q…), want %d (%.40q…)", v.Name, len(got), got, len(want), want)
	}
}

// text is n bytes that differ by their place.
func text(n int) string {
	var s strings.Builder
	for i := 0; s.Len() < n; i++ {
		fmt.Fprintf(&s, "%07d\n", i)
	}
	return s.String()[:n]
}
