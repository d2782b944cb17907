package sqldb

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"fleetdesk/internal/core/fault"
)

// errMute is why a call ended at its own limit.
var errMute = errors.New("it did not answer in time: see whether the server is overloaded or stopped")

// sqlStates say what a state means, by the whole state first, then by its class
// (the first two signs). Source: PostgreSQL's manual, appendix A.
var sqlStates = map[string]struct {
	class fault.Class
	says  string
}{
	"23505": {fault.Conflict, ""},
	"23503": {fault.NotFound, ""},
	"57014": {fault.Timeout, "a statement took too long"},
	"55P03": {fault.Unavailable, "another session held a lock for too long: see pg_stat_activity for a program that hangs"},
	"40":    {fault.Transient, "another transaction was in the way: try again"},
	"25P03": {fault.Unavailable, "the server ended a transaction that stood still"},
	"25006": {fault.Unavailable, "the server takes no writes: it is a standby or set read-only; name the primary, or all hosts, in the URL"},
	"08":    {fault.Unavailable, "the connection failed"},
	"57":    {fault.Unavailable, "the server is stopping, starting or ended the connection"},
	"3D000": {fault.Permanent, "the database does not exist: CREATE DATABASE it"},
	"28":    {fault.Permanent, "the server refuses the user: check user and password in the URL, and pg_hba.conf"},
	"42501": {fault.Permanent, "the user lacks a right: CREATE SCHEMA fleetdesk AUTHORIZATION it, or GRANT CREATE ON DATABASE to it; what lies in the schema must be its own"},
	"53100": {fault.Unavailable, "the server's disk is full: make room there"},
	"53200": {fault.Unavailable, "the server is out of memory"},
	"53300": {fault.Unavailable, "the server has too many connections: raise max_connections, or run fewer replicas"},
	"53":    {fault.Unavailable, "the server is out of a resource"},
	"54":    {fault.Permanent, "a limit of the server is reached: this is a defect of the program"},
	"58":    {fault.Unavailable, "the server's machine fails: see its log"},
	"XX001": {fault.Permanent, "it is damaged: restore it from a backup"},
	"XX002": {fault.Permanent, "an index is damaged: REINDEX it"},
	"XX":    {fault.Unavailable, "the server has an internal error: see its log"},
	"22021": {fault.Invalid, "a text holds signs that a database cannot keep"},
	"22":    {fault.Permanent, misfit},
	"23":    {fault.Permanent, misfit},
	"25":    {fault.Permanent, misfit},
	"42":    {fault.Permanent, misfit},
	"0A":    {fault.Permanent, misfit},
}

const misfit = "this program and the schema do not fit, or the program has a defect"

// classify gives an error of the database its class, by codes only. An error that
// has a class keeps it. ctx is the call's.
func (d *postgresDB) classify(ctx context.Context, err error) error {
	if err == nil || fault.Classed(err) {
		return err
	}
	wrap := func(class fault.Class, says string) error {
		if says != "" {
			says += ": "
		}
		return fault.Errorf(class, "%s: %s%w", d.what(), says, bare(err))
	}
	pg, fromServer := errors.AsType[*pgconn.PgError](err)
	if fromServer && (pg.Code == "23505" || pg.Code == "23503") {
		return wrap(sqlStates[pg.Code].class, "")
	}
	if ended := ctx.Err(); ended != nil {
		// What the driver says about a call that it was told to end varies.
		if errors.Is(context.Cause(ctx), errMute) {
			return fault.Errorf(fault.Unavailable, "%s: %w", d.what(), errMute)
		}
		if errors.Is(err, ended) {
			return wrap(fault.Timeout, "")
		}
		return fault.Errorf(fault.Timeout, "%s: %w: %w", d.what(), ended, bare(err))
	}
	if fromServer {
		for _, state := range []string{pg.Code, pg.Code[:min(2, len(pg.Code))]} {
			if m, ok := sqlStates[state]; ok {
				return wrap(m.class, m.says)
			}
		}
		return wrap(fault.Unavailable, "")
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return wrap(fault.Permanent, "the server's certificate is for another name: use that one as host")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return wrap(fault.Permanent, "the server's certificate is not trusted: name the file of its authority as sslrootcert")
	}
	// Refused, reset, unreachable, a closed pool.
	return wrap(fault.Unavailable, "it cannot be reached")
}

// bare takes the settings out of an error of connecting, which hold the
// password, and makes one line of its text.
func bare(err error) error {
	if e, ok := errors.AsType[*pgconn.ConnectError](err); ok && errors.Unwrap(e) != nil {
		err = errors.Unwrap(e)
	}
	return &oneLine{err}
}

type oneLine struct{ err error }

func (e *oneLine) Error() string {
	return strings.Join(strings.FieldsFunc(e.err.Error(), func(r rune) bool { return r == '\n' || r == '\r' || r == '\t' }), "; ")
}

func (e *oneLine) Unwrap() error { return e.err }
