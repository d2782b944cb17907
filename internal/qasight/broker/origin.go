package broker

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// origins notes, beside a local lease database, from which file the list of each
// pool was published last. It tells two checkouts of one project apart, which share
// the database. It is no part of the database: a note that is missing or of another
// revision means that the list is not known to be this file's.
type origins struct{ dir, file string }

// origin is one note.
type origin struct {
	Revision int64  `json:"revision"`
	File     string `json:"file"`
}

func (o *origins) path(pool string) string { return filepath.Join(o.dir, pool+".json") }

// note says that the revision of a pool was published from this file. A failure
// costs no more than a question later.
func (o *origins) note(pool string, revision int64) {
	if o == nil {
		return
	}
	text, err := json.Marshal(origin{revision, o.file})
	if err != nil || os.MkdirAll(o.dir, 0o700) != nil {
		return
	}
	part, err := os.CreateTemp(o.dir, "."+pool+"-*")
	if err != nil {
		return
	}
	defer os.Remove(part.Name())
	_, err = part.Write(text)
	if closed := part.Close(); err == nil && closed == nil {
		_ = os.Rename(part.Name(), o.path(pool))
	}
}

// maxNote bounds a note, in bytes.
const maxNote = 16 << 10

// of returns whether the revision of a pool was published from this file, and the
// file that it was published from, "" when that is not known.
func (o *origins) of(pool string, revision int64) (ours bool, file string) {
	if o == nil {
		return true, ""
	}
	info, err := os.Stat(o.path(pool))
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxNote {
		return false, ""
	}
	text, err := os.ReadFile(o.path(pool))
	var n origin
	if err != nil || json.Unmarshal(text, &n) != nil || n.Revision != revision {
		return false, ""
	}
	return n.File == o.file, n.File
}
