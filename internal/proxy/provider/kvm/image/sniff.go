package image

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// kind is what a file's first bytes say of it.
type kind int

const (
	kindUnknown kind = iota
	kindDisk         // a boot sector: raw, as far as one can see
	kindQCOW2
	kindOther // certainly no disk as it is
)

// finding is what was found, in words that follow "it is not … as promised:".
type finding struct {
	kind kind
	text string
}

// magics are the first bytes, or those at an offset, of files that are no disk
// as they are.
var magics = [...]struct {
	at    int
	magic string
	text  string
}{
	{0, "\x1f\x8b", packed("gzip", "gunzip")},
	{0, "\xfd7zXZ\x00", packed("xz", "xz -d")},
	{0, "\x28\xb5\x2f\xfd", packed("zstd", "zstd -d")},
	{0, "BZh", packed("bzip2", "bunzip2")},
	{0, "\x04\x22\x4d\x18", packed("lz4", "lz4 -d")},
	{0, "7z\xbc\xaf\x27\x1c", packed("7-Zip", "7z x")},
	{0, "PK\x03\x04", packed("ZIP", "unzip")},
	{0, "PK\x05\x06", "it is an empty ZIP archive"},
	{0, "Rar!\x1a\x07", packed("RAR", "unrar x")},
	{257, "ustar", "it is a tar archive (an OVA is one, too); unpack it, and give the URL of the disk inside"},
	{0, "KDMV", foreign("VMDK")},
	{0, "COWD", foreign("VMDK")},
	{0, "# Disk DescriptorFile", foreign("VMDK")},
	{64, "\x7f\x10\xda\xbe", foreign("VDI")},
	{0, "<<< ", foreign("VDI")},
	{0, "vhdxfile", foreign("VHDX")},
	{0, "conectix", foreign("VHD")},
	{0, "QED\x00", foreign("QED")},
	{0, "WithoutFreeSpace", foreign("Parallels")},
	{0, "WithouFreSpacExt", foreign("Parallels")},
	{0, "LUKS\xba\xbe", "it is encrypted with LUKS, and no host has the key"},
}

func packed(with, by string) string {
	return fmt.Sprintf("it is compressed with %s; unpack it with `%s`, and give the URL of the result", with, by)
}

func foreign(format string) string {
	return fmt.Sprintf("it is %s; convert it with `qemu-img convert -O qcow2`", format)
}

// documents are how pages begin that a server sends in place of a file, in
// lower case.
var documents = [...]struct{ begin, what string }{
	{"<!doctype html", "an HTML page"},
	{"<html", "an HTML page"},
	{"<head", "an HTML page"},
	{"<body", "an HTML page"},
	{"<!--", "an HTML page"},
	{"<?xml", "an XML document"},
	{"<error", "an XML document"},
	{"<", "an HTML or XML page"},
	{"{", "a JSON document"},
	{"[", "a JSON document"},
}

// sniff looks at a file's first bytes, of which there is at least one.
func sniff(b []byte) finding {
	if bytes.HasPrefix(b, []byte("QFI\xfb")) {
		return finding{kindQCOW2, "it is qcow2; promise it as qcow2"}
	}
	for _, m := range magics {
		if len(b) >= m.at+len(m.magic) && string(b[m.at:m.at+len(m.magic)]) == m.magic {
			return finding{kindOther, m.text}
		}
	}
	if what := document(b); what != "" {
		return finding{kindOther, fmt.Sprintf("it is %s, perhaps an error or a login page that came with status 200; open the URL in a browser", what)}
	}
	if len(b) >= sector && b[510] == 0x55 && b[511] == 0xaa {
		return finding{kindDisk, "it looks like a raw disk; promise it as raw, or convert it with `qemu-img convert -O qcow2`"}
	}
	return finding{kindUnknown, fmt.Sprintf("it begins with %x; check what the server has there", b[:min(len(b), 8)])}
}

// document names the text that b begins with, "" when it is none. A disk has
// zeros or other control characters in its first sector.
func document(b []byte) string {
	b = b[:min(len(b), sector)]
	b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))
	lower := bytes.ToLower(bytes.TrimLeft(b, " \t\r\n"))
	text := isText(b)
	for _, d := range documents {
		// One character says something only of a text.
		if bytes.HasPrefix(lower, []byte(d.begin)) && (text || len(d.begin) > 1) {
			return d.what
		}
	}
	if text {
		return "plain text"
	}
	return ""
}

// isText reports whether b is UTF-8 without control characters; a character
// that is cut at the end counts as one.
func isText(b []byte) bool {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == utf8.RuneError && n == 1 && utf8.FullRune(b):
			return false
		case r < ' ' && r != '\t' && r != '\n' && r != '\r' && r != '\f', r == 0x7f:
			return false
		}
		b = b[n:]
	}
	return true
}
