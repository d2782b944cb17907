package image_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/image"
)

// Headers that qemu-img 7.2 wrote: the parser must agree with it on each.
var byQEMU = map[string]struct {
	reason string
	header string // hex, the first bytes
	length int64
	want   image.Header
	says   string // part of the refusal
}{
	"default":        {"qemu-img create", "514649fb000000030000000000000000000000000000001000000000400000000000000000000002000000000003000000000000000100000000000100000001000000000005000000000000000000000000000000000000000000000000000000000004000000700000000000000000", 327746, image.Header{Format: image.QCOW2, VirtualSize: 1 << 30, Version: 3, ClusterBits: 16}, ""},
	"compat 0.10":    {"version 2 has a shorter header", "514649fb0000000200000000000000000000000000000010000000004000000000000000000000020000000000030000000000000001000000000001000000000000000000000000", 196624, image.Header{Format: image.QCOW2, VirtualSize: 1 << 30, Version: 2, ClusterBits: 16}, ""},
	"512 clusters":   {"the smallest clusters", "514649fb000000030000000000000000000000000000000900000000040000000000000000000800000000000000060000000000000002000000000100000000000000000000000000000000000000000000000000000000000000000000000000000004000000700000000000000000", 17920, image.Header{Format: image.QCOW2, VirtualSize: 64 << 20, Version: 3, ClusterBits: 9}, ""},
	"2M clusters":    {"the largest clusters", "514649fb000000030000000000000000000000000000001500000100000000000000000000000002000000000060000000000000002000000000000100000000000000000000000000000000000000000000000000000000000000000000000000000004000000700000000000000000", 6291472, image.Header{Format: image.QCOW2, VirtualSize: 1 << 40, Version: 3, ClusterBits: 21}, ""},
	"extended L2":    {"an L2 table maps half as many clusters", "514649fb00000003000000000000000000000000000000110000000280000000000000000000000a000000000006000000000000000200000000000100000000000000000000000000000000000000100000000000000000000000000000000000000004000000700000000000000000", 393296, image.Header{Format: image.QCOW2, VirtualSize: 10 << 30, Version: 3, ClusterBits: 17}, ""},
	"extended, 16k":  {"the smallest clusters with subclusters", "514649fb000000030000000000000000000000000000000e00000002800000000000000000000280000000000000c00000000000000040000000000100000000000000000000000000000000000000100000000000000000000000000000000000000004000000700000000000000000", 54272, image.Header{Format: image.QCOW2, VirtualSize: 10 << 30, Version: 3, ClusterBits: 14}, ""},
	"zstd":           {"compression type zstd is bit 3", "514649fb000000030000000000000000000000000000001000000000400000000000000000000002000000000003000000000000000100000000000100000000000000000000000000000000000000080000000000000000000000000000000000000004000000700100000000000000", 196624, image.Header{Format: image.QCOW2, VirtualSize: 1 << 30, Version: 3, ClusterBits: 16, Zstd: true}, ""},
	"lazy refcounts": {"compatible features may be ignored", "514649fb000000030000000000000000000000000000001000000000400000000000000000000002000000000003000000000000000100000000000100000000000000000000000000000000000000000000000000000001000000000000000000000004000000700000000000000000", 196624, image.Header{Format: image.QCOW2, VirtualSize: 1 << 30, Version: 3, ClusterBits: 16}, ""},
	"1-bit refs":     {"the smallest reference counts", "514649fb000000030000000000000000000000000000001000000000400000000000000000000002000000000003000000000000000100000000000100000000000000000000000000000000000000000000000000000000000000000000000000000000000000700000000000000000", 196624, image.Header{Format: image.QCOW2, VirtualSize: 1 << 30, Version: 3, ClusterBits: 16}, ""},
	"64-bit refs":    {"the largest", "514649fb000000030000000000000000000000000000001000000000400000000000000000000002000000000003000000000000000100000000000100000000000000000000000000000000000000000000000000000000000000000000000000000006000000700000000000000000", 196624, image.Header{Format: image.QCOW2, VirtualSize: 1 << 30, Version: 3, ClusterBits: 16}, ""},
	"odd size":       {"a size that is no multiple of 512 is rounded up", "514649fb000000030000000000000000000000000000001000000000000f44000000000000000001000000000003000000000000000100000000000100000000000000000000000000000000000000000000000000000000000000000000000000000004000000700000000000000000", 196616, image.Header{Format: image.QCOW2, VirtualSize: 1000448, Version: 3, ClusterBits: 16}, ""},
	"64 TiB":         {"the largest disk that is taken", "514649fb000000030000000000000000000000000000001000004000000000000000000000020000000000000003000000000000000100000000000100000000000000000000000000000000000000000000000000000000000000000000000000000004000000700000000000000000", 1245184, image.Header{Format: image.QCOW2, VirtualSize: 64 << 40, Version: 3, ClusterBits: 16}, ""},
	"backing file":   {"qemu-img create -b", "514649fb0000000300000000000002100000000c0000001000000000400000000000000000000002000000000003000000000000000100000000000100000000000000000000000000000000000000000000000000000000000000000000000000000004000000700000000000000000", 196624, image.Header{}, "backing file"},
	"data file":      {"qemu-img create -o data_file=", "514649fb000000030000000000000000000000000000001000000000400000000000000000000002000000000003000000000000000100000000000100000000000000000000000000000000000000040000000000000000000000000000000200000004000000700000000000000000", 393216, image.Header{}, "data file"},
	"encrypted":      {"qemu-img create -o encrypt.format=luks", "514649fb000000030000000000000000000000000000001000000000040000000000000200000001000000000003000000000000000100000000000100000000000000000000000000000000000000000000000000000000000000000000000000000004000000700000000000000000", 2359296, image.Header{}, "encrypted (method 2)"},
	"no disk":        {"qemu-img create with size 0", "514649fb000000030000000000000000000000000000001000000000000000000000000000000000000000000000000000000000000100000000000100000000000000000000000000000000000000000000000000000000000000000000000000000004000000700000000000000000", 196608, image.Header{}, "0 bytes: there is nothing in it"},
	"version 1":      {"qemu-img create -f qcow", "514649fb00000001000000000000000000000000000000000000000040000000" + strings.Repeat("00", 80), 4144, image.Header{}, "version 1"},
}

func TestReadHeaderAsQEMUWritesIt(t *testing.T) {
	for name, tc := range byQEMU {
		t.Run(name, func(t *testing.T) {
			b, err := hex.DecodeString(tc.header)
			if err != nil {
				t.Fatal(err)
			}
			for _, length := range []int64{tc.length, 0} {
				got, err := image.ReadHeader(b, image.QCOW2, length)
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s, length %d (-want +got):\n%s", tc.reason, length, diff)
				}
				refusedWith(t, err, tc.says, tc.reason)
			}
		})
	}
}

// refusedWith wants no error when says is empty, else a Permanent one with it.
func refusedWith(t *testing.T, err error, says, reason string) {
	t.Helper()
	if says == "" {
		if err != nil {
			t.Errorf("%v: %s", err, reason)
		}
		return
	}
	if err == nil || !strings.Contains(err.Error(), says) || fault.Of(err) != fault.Permanent || !fault.Classed(err) {
		t.Errorf("got %v (%s), want a Permanent error with %q: %s", err, fault.Of(err), says, reason)
	}
}

func TestReadHeaderOfQCOW2(t *testing.T) {
	const long = 1 << 20
	v2 := set32(4, 2)
	for name, tc := range map[string]struct {
		reason string
		b      []byte
		length int64
		says   string
	}{
		"good":                  {"the rows below change one thing of this", qcow(), long, ""},
		"no length":             {"the server need not tell it", qcow(), 0, ""},
		"format not promised":   {"covered below", qcow(), long, ""},
		"backing offset":        {"any offset makes QEMU read a name", qcow(set64(8, 1)), long, "backing file"},
		"backing, high bits":    {"the whole field counts", qcow(set64(8, 1<<63)), long, "backing file"},
		"backing in v2":         {"old headers have it as well", qcow(v2, set64(8, 0x200)), long, "backing file"},
		"backing size alone":    {"without an offset QEMU reads nothing", qcow(set32(16, 20)), long, ""},
		"data file":             {"incompatible feature bit 2", qcow(set64(72, 4)), long, "data file"},
		"AES":                   {"the old encryption", qcow(set32(32, 1)), long, "encrypted (method 1)"},
		"AES in v2":             {"as well", qcow(v2, set32(32, 1)), long, "encrypted (method 1)"},
		"dirty":                 {"reference counts need not be right for a base that is only read", qcow(set64(72, 1)), long, ""},
		"corrupt":               {"QEMU says so itself", qcow(set64(72, 2)), long, "corrupt"},
		"unknown feature 5":     {"the first bit that nobody knows", qcow(set64(72, 1<<5)), long, "features that are not known (bits 0x20)"},
		"unknown feature 63":    {"the last", qcow(set64(72, 1<<63)), long, "features that are not known"},
		"features in v2":        {"version 2 has none: what lies there is something else", qcow(v2, set64(72, 1<<63|4), set32(96, 99), set32(100, 99)), long, ""},
		"compatible features":   {"may be ignored", qcow(set64(80, 1<<63), set64(88, 1<<63)), long, ""},
		"zstd without its bit":  {"QEMU refuses it", qcow(set8(104, 1)), long, "type 1"},
		"bit without zstd":      {"QEMU refuses it", qcow(set64(72, 8)), long, "type 0"},
		"unknown compression":   {"a later one", qcow(set64(72, 8), set8(104, 2)), long, "type 2"},
		"bit, short header":     {"the field is not there", qcow(set64(72, 8), set32(100, 104), set8(104, 1)), long, "type 0"},
		"short header":          {"written before compression types", qcow(set32(100, 104), set8(104, 0xe2)), long, ""},
		"version 0":             {"nothing", qcow(set32(4, 0)), long, "no version"},
		"version 1":             {"too old", qcow(set32(4, 1)), long, "version 1"},
		"version 4":             {"too new", qcow(set32(4, 4)), long, "version 4"},
		"header too small":      {"it does not hold its own fields", qcow(set32(100, 103)), long, "a header of 103 bytes"},
		"header too large":      {"larger than its cluster", qcow(set32(100, 65537)), long, "a header of 65537 bytes"},
		"cluster of 256":        {"too small", qcow(set32(20, 8)), long, "a cluster of 2^8"},
		"cluster of 4M":         {"too large", qcow(set32(20, 22)), long, "a cluster of 2^22"},
		"cluster of 2^64":       {"no shift beyond the word", qcow(set32(20, 64)), long, "a cluster of 2^64"},
		"cluster of 2^(2^32-1)": {"at all", qcow(set32(20, 1<<32-1)), long, "a cluster of 2^4294967295"},
		"extended, 8k":          {"subclusters need 16k", qcow(set64(72, 16), set32(20, 13), set32(36, 1<<20)), long, "a cluster of 2^13"},
		"no disk":               {"nothing to boot", qcow(set64(24, 0)), long, "0 bytes"},
		"64 TiB and one":        {"larger than any disk we make", qcow(set64(24, 64<<40+1), set32(36, 131073)), long, "at most 70368744177664"},
		"2^63":                  {"negative for some", qcow(set64(24, 1<<63)), long, "its disk has 9223372036854775808 bytes"},
		"2^64-1":                {"the largest number", qcow(set64(24, 1<<64-1)), long, "its disk has 18446744073709551615 bytes"},
		"L1 too small":          {"one entry for 1 GiB, 512 MiB each", qcow(set32(36, 1)), long, "an L1 table of 1 entries"},
		"L1 larger":             {"a disk that was shrunk", qcow(set32(36, 3)), long, ""},
		"L1 too large":          {"QEMU takes 32 MiB", qcow(set32(36, 4<<20+1)), long, "an L1 table of 4194305 entries"},
		"L1 half, extended":     {"an entry maps 256 MiB with subclusters", qcow(set64(72, 16)), long, "an L1 table of 2 entries"},
		"L1 at 0":               {"that is the header", qcow(set64(40, 0)), long, "its L1 table at 0"},
		"L1 unaligned":          {"tables begin with a cluster", qcow(set64(40, 0x3_0200)), long, "its L1 table at 197120"},
		"L1 beyond the end":     {"cut before it was put there", qcow(), 0x3_0000, "cut short"},
		"L1 just inside":        {"zeros at the end need not be stored", qcow(), 0x3_0001, ""},
		"refs beyond the end":   {"cut as well", qcow(set64(48, 1<<40)), long, "cut short"},
		"refs at 0":             {"that is the header", qcow(set64(48, 0)), long, "reference count table at 0"},
		"refs unaligned":        {"tables begin with a cluster", qcow(set64(48, 0x1_0008)), long, "reference count table at 65544"},
		"no refs":               {"QEMU refuses it", qcow(set32(56, 0)), long, "a reference count table of 0 clusters"},
		"most refs":             {"8 MiB are taken", qcow(set32(56, 128)), long, ""},
		"too many refs":         {"and no more", qcow(set32(56, 129)), long, "a reference count table of 129 clusters"},
		"refs of 128 bits":      {"64 are known", qcow(set32(96, 7)), long, "reference counts of 2^7 bits"},
		"magic alone":           {"cut", []byte("QFI\xfb"), 4, "ends after 4 of 72 bytes"},
		"71 bytes":              {"cut in version 2's header", qcow(v2)[:71], 71, "ends after 71 of 72"},
		"72 bytes of v2":        {"whole", qcow(v2)[:72], 0, ""},
		"103 bytes":             {"cut in version 3's header", qcow()[:103], 103, "ends after 103 of 104"},
		"104 of 112":            {"cut before the compression type", qcow()[:104], 104, "ends after 104 of 112"},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := image.ReadHeader(tc.b, image.QCOW2, tc.length)
			refusedWith(t, err, tc.says, tc.reason)
			if (err == nil) == (h == image.Header{}) {
				t.Errorf("%+v with the error %v", h, err)
			}
			byDefault, err2 := image.ReadHeader(tc.b, "", tc.length)
			if h != byDefault || (err == nil) != (err2 == nil) {
				t.Errorf("without a promise qcow2 is expected: %+v, %v", byDefault, err2)
			}
		})
	}
}

// head is the first sector of a file that begins so.
func head(s string) []byte {
	b := make([]byte, 4096)
	copy(b, s)
	return b
}

func at(offset int, s string) []byte {
	b := make([]byte, 4096)
	copy(b[offset:], s)
	return b
}

func TestReadHeaderOfOtherThings(t *testing.T) {
	text := strings.Repeat("all work and no play\n", 200)
	for name, tc := range map[string]struct {
		reason string
		b      []byte
		qcow2  string // refusal when qcow2 was promised
		raw    string // and when raw was
	}{
		"empty":                {"nothing came", nil, "it is empty", "it is empty"},
		"qcow2":                {"the guest would see its header as a disk", qcow(), "", "not raw as promised: it is qcow2; promise it as qcow2"},
		"broken qcow2":         {"as well", qcow(set64(8, 1)), "backing file", "it is qcow2"},
		"boot sector":          {"the usual raw disk", rawDisk(4096), "it looks like a raw disk; promise it as raw", ""},
		"zeros":                {"a raw disk need not boot", head(""), "it begins with 0000000000000000", ""},
		"random":               {"a raw disk may hold anything", at(0, "\xfa\x31\xc0\x8e\xd8"), "it begins with fa31c08ed8000000", ""},
		"gzip":                 {"the usual way to send raw", head("\x1f\x8b\x08\x00"), "compressed with gzip; unpack it with `gunzip`", "not raw as promised: it is compressed with gzip"},
		"xz":                   {"as well", head("\xfd7zXZ\x00"), "compressed with xz", "compressed with xz"},
		"zstd":                 {"as well", head("\x28\xb5\x2f\xfd"), "compressed with zstd", "compressed with zstd"},
		"bzip2":                {"as well", head("BZh91AY"), "compressed with bzip2", "compressed with bzip2"},
		"lz4":                  {"as well", head("\x04\x22\x4d\x18"), "compressed with lz4", "compressed with lz4"},
		"7z":                   {"as well", head("7z\xbc\xaf\x27\x1c"), "compressed with 7-Zip", "compressed with 7-Zip"},
		"zip":                  {"as well", head("PK\x03\x04"), "compressed with ZIP", "compressed with ZIP"},
		"empty zip":            {"as well", head("PK\x05\x06"), "empty ZIP", "empty ZIP"},
		"rar":                  {"as well", head("Rar!\x1a\x07\x00"), "compressed with RAR", "compressed with RAR"},
		"tar":                  {"an OVA is one", at(257, "ustar\x00"), "tar archive", "tar archive"},
		"VMDK":                 {"what virtual machines are sold in", head("KDMV\x01"), "it is VMDK; convert it with `qemu-img convert -O qcow2`", "it is VMDK"},
		"VMDK, ESX":            {"its older kind", head("COWD"), "it is VMDK", "it is VMDK"},
		"VMDK, descriptor":     {"a text, and no disk", []byte("# Disk DescriptorFile\nversion=1\n"), "it is VMDK", "it is VMDK"},
		"VDI":                  {"its text looks like a tag", head("<<< Oracle VM VirtualBox Disk Image >>>\n"), "it is VDI", "it is VDI"},
		"VDI by its signature": {"with any text", at(64, "\x7f\x10\xda\xbe"), "it is VDI", "it is VDI"},
		"VHDX":                 {"Hyper-V's", head("vhdxfileQ\x00E\x00"), "it is VHDX", "it is VHDX"},
		"VHD":                  {"its predecessor", head("conectix\x00"), "it is VHD;", "it is VHD;"},
		"QED":                  {"QEMU's own", head("QED\x00\x00"), "it is QED", "it is QED"},
		"Parallels":            {"another", head("WithoutFreeSpace"), "it is Parallels", "it is Parallels"},
		"Parallels, old":       {"another", head("WithouFreSpacExt"), "it is Parallels", "it is Parallels"},
		"LUKS":                 {"no host has the key", head("LUKS\xba\xbe"), "encrypted with LUKS", "encrypted with LUKS"},
		"HTML":                 {"an error page with status 200", []byte("<!DOCTYPE html>\n<html><head>"), "not qcow2 as promised: it is an HTML page", "not raw as promised: it is an HTML page"},
		"HTML, blanks first":   {"templates begin so", []byte("\r\n\t <HTML>"), "an HTML page", "an HTML page"},
		"HTML, BOM first":      {"editors add it", []byte("\xef\xbb\xbf<html>"), "an HTML page", "an HTML page"},
		"HTML in Latin-1":      {"not UTF-8", []byte("<html><title>Pas trouv\xe9</title>"), "an HTML page", "an HTML page"},
		"HTML, cut in a rune":  {"the sniffed part may end anywhere", []byte("<p>" + strings.Repeat("é", 400)), "an HTML or XML page", "an HTML or XML page"},
		"XML":                  {"an object store's error", []byte(`<?xml version="1.0"?><Error><Code>AccessDenied</Code>`), "an XML document", "an XML document"},
		"XML without a head":   {"as well", []byte(`<Error><Code>NoSuchKey</Code></Error>`), "an XML document", "an XML document"},
		"JSON":                 {"an API's error", []byte(`{"message":"not found"}`), "a JSON document", "a JSON document"},
		"JSON list":            {"as well", []byte(`[]`), "a JSON document", "a JSON document"},
		"text":                 {"a pointer of a large-file store, a mirror's note", []byte(text), "plain text", "plain text"},
		"bracket of a disk":    {"one byte is no text", head("[\x00\xfa\x31"), "it begins with 5b00fa3100000000", ""},
		"brace of a disk":      {"one byte is no text", head("{\x01"), "it begins with 7b01", ""},
		"less of a disk":       {"one byte is no text", head("<\x90"), "it begins with 3c90", ""},
		"text, then zeros":     {"a disk with a label in its first sector", head("LABEL one"), "it begins with 4c4142454c206f6e", ""},
		"delete character":     {"no text", []byte("abc\x7f"), "it begins with 6162637f", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := image.ReadHeader(tc.b, image.QCOW2, 1<<20)
			refusedWith(t, err, tc.qcow2, tc.reason)
			h, err := image.ReadHeader(tc.b, image.Raw, 1<<20)
			refusedWith(t, err, tc.raw, tc.reason)
			if want := (image.Header{Format: image.Raw, VirtualSize: 1 << 20}); err == nil && h != want {
				t.Errorf("%+v, want %+v", h, want)
			}
		})
	}
}

func TestReadHeaderOfRawSizes(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		length int64
		says   string
	}{
		"a sector":    {"the smallest disk", 512, ""},
		"not told":    {"the size is known at the end", 0, ""},
		"odd":         {"no disk: it was cut, or is something else", 513, "no multiple of 512"},
		"64 TiB":      {"the largest", 64 << 40, ""},
		"larger":      {"too large", 64<<40 + 512, "at most 70368744177664 are taken"},
		"less than 0": {"nobody has one", -512, "is none"},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := image.ReadHeader(rawDisk(4096), image.Raw, tc.length)
			refusedWith(t, err, tc.says, tc.reason)
			if err == nil && h.VirtualSize != tc.length {
				t.Errorf("%+v, want %d bytes: %s", h, tc.length, tc.reason)
			}
		})
	}
	_, err := image.ReadHeader(rawDisk(4096), "vmdk\x1b", 0)
	refusedWith(t, err, `"vmdk?"`, "an unknown promise is no panic, and a text for people")
}

// looksHarmless is what every accepted image must be, read by its own rules.
func looksHarmless(t interface{ Errorf(string, ...any) }, b []byte, h image.Header) {
	switch {
	case h.VirtualSize < 0 || h.VirtualSize > image.MaxVirtualSize || h.VirtualSize%512 != 0:
		t.Errorf("a disk of %d bytes", h.VirtualSize)
	case h.Format == image.Raw && bytes.HasPrefix(b, []byte("QFI\xfb")):
		t.Errorf("a qcow2 as raw")
	case h.Format != image.QCOW2:
		return
	}
	version := binary.BigEndian.Uint32(b[4:])
	switch {
	case binary.BigEndian.Uint64(b[8:]) != 0:
		t.Errorf("a backing file")
	case binary.BigEndian.Uint32(b[32:]) != 0:
		t.Errorf("encryption")
	case version == 3 && binary.BigEndian.Uint64(b[72:])&^(1|8|16) != 0:
		t.Errorf("features %x", binary.BigEndian.Uint64(b[72:]))
	case int(version) != h.Version || h.Version < 2 || h.Version > 3:
		t.Errorf("version %d", version)
	case h.ClusterBits < 9 || h.ClusterBits > 21:
		t.Errorf("clusters of 2^%d", h.ClusterBits)
	case uint64(h.VirtualSize)-binary.BigEndian.Uint64(b[24:]) >= 512:
		t.Errorf("a disk of %d bytes for %d", h.VirtualSize, binary.BigEndian.Uint64(b[24:]))
	}
}

// Whatever an accepted header has, it makes the host read nothing else.
func TestAcceptedHeadersAreHarmless(t *testing.T) {
	offsets := []int{4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 72, 76, 80, 88, 96, 100, 104}
	rapid.Check(t, func(t *rapid.T) {
		b := qcow()
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			v := rapid.OneOf(rapid.SampledFrom([]uint32{0, 1, 2, 3, 4, 8, 9, 14, 16, 21, 104, 112, 1 << 16, 1 << 31}), rapid.Uint32()).Draw(t, "value")
			set32(rapid.SampledFrom(offsets).Draw(t, "offset"), v)(b)
		}
		h, err := image.ReadHeader(b, image.QCOW2, rapid.Int64Range(0, 1<<41).Draw(t, "length"))
		if err != nil {
			if fault.Of(err) != fault.Permanent {
				t.Errorf("%v is %s", err, fault.Of(err))
			}
			return
		}
		looksHarmless(t, b, h)
	})
}

func FuzzReadHeader(f *testing.F) {
	for _, tc := range byQEMU {
		b, _ := hex.DecodeString(tc.header)
		f.Add(b, string(image.QCOW2), tc.length)
	}
	f.Add([]byte("<html>"), "", int64(6))
	f.Add(rawDisk(1024), string(image.Raw), int64(1024))
	f.Add([]byte("QFI\xfb\x00\x00\x00\x03"), "", int64(-1))
	f.Fuzz(func(t *testing.T, b []byte, promised string, length int64) {
		h, err := image.ReadHeader(b, image.Format(promised), length)
		if (err != nil) == (h != image.Header{}) {
			t.Errorf("%+v with the error %v", h, err)
		}
		if err == nil {
			looksHarmless(t, b, h)
		} else if fault.Of(err) != fault.Permanent || strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q is %s", err, fault.Of(err))
		}
	})
}
