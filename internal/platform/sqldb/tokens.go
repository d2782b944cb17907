package sqldb

import (
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
)

// Tokens is the database as the store of accounts and tokens.
type Tokens interface {
	token.Store
	token.Directory
}

// instant is a stored time.
func instant(micros int64) time.Time { return time.UnixMicro(micros).UTC() }

func noAccount(name string) error {
	return fault.Errorf(fault.NotFound, "account %.140q does not exist", name)
}

func noToken(id string) error {
	return fault.Errorf(fault.NotFound, "token %.80q does not exist", id)
}

func accountExists(name string) error {
	return fault.Errorf(fault.Conflict, "account %s exists already: choose another name", name)
}

func tokenExists(id string) error {
	return fault.Errorf(fault.Conflict, "token %s exists already", id)
}

func ownerMissing(account string) error {
	return fault.Errorf(fault.NotFound, "account %s does not exist: create it first", account)
}
