package seed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/kdomanski/iso9660"

	"fleetdesk/internal/core/fault"
)

const (
	// label is the volume label by which cloud-init knows a seed.
	label = "cidata"
	// maxData bounds user-data and vendor-data, in bytes: what Kubernetes stores
	// is far below, and all of it is in memory.
	maxData = 16 << 20
	// maxText bounds instance-id and host name, in bytes.
	maxText = 253
)

// Input is what goes into a seed.
type Input struct {
	// InstanceID is the object's UID: a machine that is made anew has another
	// one, so that cloud-init runs in it.
	InstanceID string
	// HostName is the guest's name.
	HostName string
	// UserData is the user's, of any kind that cloud-init knows. It is secret.
	UserData []byte
	// InstallAgent adds the script that brings the guest agent.
	InstallAgent bool
	// VendorData is the configuration's own vendor-data; see [VendorData].
	VendorData []byte
}

// file is one of the seed's files.
type file struct {
	name string
	data io.Reader
}

// Build returns the seed: an ISO 9660 image with the label cidata and the files
// meta-data, user-data (byte for byte, also when it is empty: cloud-init needs
// the file) and, when there is something in it, vendor-data. Two builds differ
// in the image's times.
//
// It blocks for as long as writing the files to the machine's folder for
// temporary files takes, where they are in a folder that only this user can
// enter, and which is gone when Build returns.
//
// Errors: Invalid for an input that no guest can use; Transient when the folder
// for temporary files is full, or the machine lacks files or memory; Permanent
// when it cannot be written to at all. No error holds anything of the data.
func Build(in Input) ([]byte, error) {
	meta, err := metaData(in)
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "no seed can be made: %w", err)
	}
	files := []file{{"meta-data", bytes.NewReader(meta)}, {"user-data", bytes.NewReader(in.UserData)}}
	if vendor := VendorData(in.InstallAgent, in.VendorData); len(vendor) > 0 {
		files = append(files, file{"vendor-data", bytes.NewReader(vendor)})
	}
	return write(files)
}

// metaData returns the file meta-data: YAML, with its values quoted so that
// they stay text.
func metaData(in Input) ([]byte, error) {
	for _, d := range []struct {
		name string
		data []byte
	}{{"user-data", in.UserData}, {"vendor-data", in.VendorData}} {
		if len(d.data) > maxData {
			return nil, fmt.Errorf("the %s has %d bytes: at most %d fit; load the rest from inside the guest", d.name, len(d.data), maxData)
		}
	}
	var b bytes.Buffer
	for _, v := range []struct{ key, value string }{{"instance-id", in.InstanceID}, {"local-hostname", in.HostName}} {
		if v.value == "" || len(v.value) > maxText || !utf8.ValidString(v.value) || strings.ContainsFunc(v.value, unicode.IsControl) {
			return nil, fmt.Errorf("the %s is %.80q: 1 to %d bytes of text are needed", v.key, v.value, maxText)
		}
		quoted, err := json.Marshal(v.value) // JSON is YAML
		if err != nil {
			return nil, fmt.Errorf("the %s: %w", v.key, err)
		}
		fmt.Fprintf(&b, "%s: %s\n", v.key, quoted)
	}
	return b.Bytes(), nil
}

// write makes the image of the files. What the library stages on the disk is
// removed again whatever happens.
func write(files []file) (image []byte, err error) {
	w, err := iso9660.NewWriter()
	if err != nil {
		return nil, stagingFault(err)
	}
	defer func() {
		if gone := w.Cleanup(); gone != nil && err == nil {
			image, err = nil, stagingFault(gone)
		}
	}()
	for _, f := range files {
		if err := w.AddFile(f.data, f.name); err != nil {
			return nil, stagingFault(err)
		}
	}
	var b bytes.Buffer
	if err := w.WriteTo(&b, label); err != nil {
		return nil, stagingFault(err)
	}
	return b.Bytes(), nil
}

// stagingFault gives a failure of the folder for temporary files its class and
// says what a person can do. One that cannot be written to stays so until
// somebody changes it; a full one, and whatever else fails there, may work soon.
func stagingFault(err error) error {
	dir := os.TempDir()
	for _, e := range []error{syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.ENOENT, syscall.ENOTDIR} {
		if errors.Is(err, e) {
			return fault.Errorf(fault.Permanent,
				"the guest's seed cannot be put together, since %s cannot be written to: %w: mount a writable folder there (in a Pod: an emptyDir), or set TMPDIR to one", dir, err)
		}
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.Errorf(fault.Transient,
			"the guest's seed cannot be put together, since %s is full: %w: make room there, or set TMPDIR to another folder", dir, err)
	}
	return fault.Errorf(fault.Transient, "the guest's seed cannot be put together in %s: %w", dir, err)
}
