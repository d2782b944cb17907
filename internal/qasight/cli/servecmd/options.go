package servecmd

import (
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/platform/httpd"
	"fleetdesk/internal/platform/sqldb"
)

// options are the team server's settings; each is a flag of the same meaning.
type options struct {
	// home is the folder of what has no place of its own.
	home string
	// listen is host:port, and addressFile where the URL is written once it
	// listens; "" for nowhere.
	listen, addressFile string
	place
	tls            httpd.TLSFiles
	allowPlaintext bool
	// adminTokenFile is where the first admin token goes; "" for beside the
	// database.
	adminTokenFile string
	// rate is how many requests a second one token may make, sustained; -1 for no
	// limit.
	rate float64
	log  *slog.Logger
	// ready is called once, when the server listens.
	ready func(started) error
}

// place is where accounts, leases and actions are kept: database is an SQLite file,
// urlFile a file with the URL of a PostgreSQL database; with neither it is desk.db
// at home.
type place struct{ database, urlFile string }

// maxRate is where a limit on requests a second stops to be one.
const maxRate = 1_000_000

// validate refuses combinations that cannot work, naming the flag.
func (o *options) validate() error {
	refuse := func(format string, args ...any) error { return fault.Errorf(fault.Invalid, format, args...) }
	switch {
	case (o.tls.Cert == "") != (o.tls.Key == ""):
		return refuse("--tls-cert and --tls-key go together: give both or neither")
	case !(o.rate > 0 && o.rate <= maxRate) && o.rate != -1: // also for NaN
		return refuse("--api-rate=%s: want more than 0 and at most %d requests a second, or -1 for no limit",
			strconv.FormatFloat(o.rate, 'f', -1, 64), maxRate)
	}
	return o.place.validate()
}

func (p place) validate() error {
	if p.database != "" && p.urlFile != "" {
		return fault.New(fault.Invalid, "--database and --database-url-file exclude each other: one is an SQLite file, the other leads to a PostgreSQL database")
	}
	return nil
}

// at is the place with what is left out filled in.
func (p place) at(home string) sqldb.Options {
	switch {
	case p.urlFile != "":
		return sqldb.Options{URLFile: p.urlFile}
	case p.database != "":
		return sqldb.Options{Path: p.database}
	}
	return sqldb.Options{Path: filepath.Join(home, "desk.db")}
}

// tokenFile is where an admin token goes that no flag gives a place.
func (p place) tokenFile(home string) string {
	if p.database != "" {
		home = filepath.Dir(p.database)
	}
	return filepath.Join(home, "admin-token")
}

// makeHome makes the folder of what has no place of its own. A folder that
// somebody named must be there already: another one may be a slip of the pen.
func makeHome(home string, needed bool) error {
	if !needed {
		return nil
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return fault.Errorf(fault.Invalid, "the server's folder cannot be made: %w: name another place with --database", err)
	}
	return nil
}

// usable refuses a file that is to be made, where it cannot be.
func usable(flag, path string) error {
	if !missing(path) {
		return fault.Errorf(fault.Invalid, "%s is there already: move it away, or name another file with %s", path, flag)
	}
	dir := filepath.Dir(path)
	probe, err := os.CreateTemp(dir, ".qasight-*.tmp")
	if err != nil {
		if cause, ok := errors.AsType[*fs.PathError](err); ok {
			err = cause.Err
		}
		return fault.Errorf(fault.Invalid, "%s %s: no file can be made in %s: %w: name a file in a folder that you may write to", flag, path, dir, err)
	}
	_ = probe.Close()
	return os.Remove(probe.Name())
}

// limits bound what one token may ask.
func (o *options) limits() api.Limits {
	if o.rate < 0 {
		return api.Limits{PerToken: -1}
	}
	return api.Limits{PerToken: o.rate, Burst: max(1, int(math.Ceil(2*o.rate)))}
}

func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
