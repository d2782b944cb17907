package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

const (
	// claimsDir holds a file for each operator that claimed the state directory.
	claimsDir = ".claims"
	// claimsLock is held, inside claimsDir, by whoever writes there.
	claimsLock = ".lock"
)

// claimed is the file of a claim: .claims/<tag of the installation>~<holder>.
type claimed struct {
	Format int    `json:"format"`
	Holder string `json:"holder"`
	Beat   uint64 `json:"beat"`
	// PeriodMS is the longest time to the next renewal, in milliseconds.
	PeriodMS int64 `json:"periodMS"`
}

// Claim implements [provider.Claimer] with one row, of the host "local". Its
// steps are "local: claim" (the new claim takes the old one's name at once) and
// "local: unclaim" for each of the dead. A holder that is in its own Dead takes
// its claim back by "local: unclaim", and makes none.
//
// A claim lies in the state directory, so that two operators see each other
// when they share one. On a copy of it each has a directory of its own; the
// original's claim is in the copy and never renewed there, and the original's
// processes are out of the copy's reach, since their locks were not copied.
func (p *Provider) Claim(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
	switch {
	case c.Installation == "":
		return nil, fault.New(fault.Invalid, "claim: its installation is empty: a claim must carry whose it is")
	case !validHolder(c.Holder):
		return nil, fault.Errorf(fault.Invalid, "claim: holder %q: want 8 to 32 characters of a-z and 0-9", short(c.Holder))
	case c.Period <= 0 || c.Period%time.Millisecond != 0:
		return nil, fault.Errorf(fault.Invalid, "claim: period %v: want whole milliseconds above zero", c.Period)
	}
	if ctx.Err() != nil {
		return nil, waitEnded(ctx, "claim")
	}
	row := provider.HostClaims{Host: Host}
	if row.Others, row.Err = p.claim(ctx, c); row.Err != nil {
		row.Others = nil
	}
	return []provider.HostClaims{row}, nil
}

func (p *Provider) claim(ctx context.Context, c provider.Claim) ([]provider.OtherClaim, error) {
	if err := p.present(); err != nil {
		return nil, err
	}
	dir := p.dir(claimsDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fileFault("make", dir, err)
	}
	release, err := acquire(ctx, filepath.Join(dir, claimsLock), "claims in "+p.stateDir)
	if err != nil {
		return nil, err
	}
	defer release()
	tag := TagOf(c.Installation)
	if !slices.Contains(c.Dead, c.Holder) {
		if err := provider.Step(ctx, "local: claim"); err != nil {
			return nil, err
		}
		if err := writeJSON(dir, claimName(tag, c.Holder), claimed{Format: format, Holder: c.Holder, Beat: c.Beat, PeriodMS: c.Period.Milliseconds()}); err != nil {
			return nil, err
		}
	}
	for _, dead := range c.Dead {
		if !validHolder(dead) {
			continue
		}
		if err := provider.Step(ctx, "local: unclaim"); err != nil {
			return nil, err
		}
		path := filepath.Join(dir, claimName(tag, dead))
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fileFault("remove", path, err)
		}
	}
	return others(dir, tag, c.Holder)
}

// others reads the claims of other holders, sorted as the folder's names are;
// the caller holds the lock.
func others(dir, tag, holder string) ([]provider.OtherClaim, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fileFault("list", dir, err)
	}
	var found []provider.OtherClaim
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasSuffix(e.Name(), newSuffix) {
			// Whoever writes holds the lock: its writer died.
			_ = os.Remove(path)
			continue
		}
		of, who, _ := strings.Cut(e.Name(), "~")
		if of != tag || !validHolder(who) || who == holder {
			continue
		}
		o, err := readClaim(path, who)
		if err != nil {
			return nil, err
		}
		found = append(found, o)
	}
	return found, nil
}

// readClaim reads the claim of holder. One that cannot be read may be a living
// operator's, so it is an error: it mends itself when that one renews it.
func readClaim(path, holder string) (provider.OtherClaim, error) {
	var c claimed
	err := readJSON(path, &c)
	if err == nil && (c.Format != format || c.Holder != holder || c.PeriodMS <= 0) {
		err = fmt.Errorf("%w: a field has no valid value", errTorn)
	}
	if err != nil {
		return provider.OtherClaim{}, fault.Errorf(fault.Transient,
			"cannot tell whose claim %s is: remove it when no other operator uses this state directory: %w", path, err)
	}
	return provider.OtherClaim{Holder: holder, Beat: c.Beat, Period: time.Duration(min(c.PeriodMS, maxPeriod.Milliseconds())) * time.Millisecond}, nil
}

// maxPeriod is what is believed at most of another's period: a claim that nobody
// renews must not hold up sweeps for years.
const maxPeriod = 24 * time.Hour

func claimName(tag, holder string) string { return tag + "~" + holder }

func validHolder(s string) bool {
	const minHolder, maxHolder = 8, 32
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(s) >= minHolder && len(s) <= maxHolder
}
