package lease

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"
)

// CooldownID names what rests for which target.
type CooldownID struct {
	Scope Scope
	// ID is a key's name or an exit IP.
	ID     string
	Target string
}

// Cooldown is what is remembered of a key, or of an exit IP, for one target: its
// rest, its bans, the uses in flight and, of a key, its turn.
type Cooldown struct {
	CooldownID
	// Until is the end of the rest, for whatever reason.
	Until time.Time
	// Strikes counts bans in a row, BannedUntil is the end of the last one's.
	Strikes     int
	BannedUntil time.Time
	// Forget is when the row says nothing any more.
	Forget time.Time
	// Turn orders the keys of a target: the time of the last use, for a key later
	// when it is to be used less often. Zero for none.
	Turn time.Time
	// Uses are those in flight, where the pool counts them.
	Uses []InFlight
}

// InFlight is a use that counts until its end.
type InFlight struct {
	Fence int64
	Ends  time.Time
	// By says whose it is: a hash of the account ([ByAccount]).
	By uint64
}

// ByAccount is the hash of an account that a use keeps.
func ByAccount(account string) uint64 {
	sum := sha256.Sum256([]byte(account))
	return binary.BigEndian.Uint64(sum[:])
}

// used is the rest after a use. Bans of which nobody would speak any more are
// not kept by it.
func (c Cooldown) used(p Pool, now time.Time) Cooldown {
	if now.After(c.BannedUntil.Add(p.Ban.Max)) {
		c.Strikes, c.BannedUntil = 0, time.Time{}
	}
	c.Until = later(c.Until, now.Add(p.Cooldown))
	c.Forget = later(c.Forget, c.Until)
	return c
}

// turned has another turn, which is remembered for [TurnFor].
func (c Cooldown) turned(turn, now time.Time) Cooldown {
	c.Turn = later(c.Turn, turn)
	c.Forget = later(c.Forget, later(turn, now).Add(TurnFor))
	return c
}

// flying has a use that counts until its end, or not any more when that is now.
func (c Cooldown) flying(of InFlight, now time.Time) Cooldown {
	c.Uses = slices.DeleteFunc(slices.Clone(c.Uses), func(u InFlight) bool { return u.Fence == of.Fence || !u.Ends.After(now) })
	if of.Ends.After(now) {
		c.Uses = append(c.Uses, of)
		c.Forget = later(c.Forget, of.Ends)
	}
	if len(c.Uses) == 0 {
		c.Uses = nil
	}
	return c
}

// fullUntil is when fewer uses than the cap are in flight; the zero time when
// that is so now, or there is no cap.
func (c *Cooldown) fullUntil(most int, now time.Time) time.Time {
	if c == nil || most == 0 || len(c.Uses) < most {
		return time.Time{}
	}
	var ends []time.Time
	for _, u := range c.Uses {
		if u.Ends.After(now) {
			ends = append(ends, u.Ends)
		}
	}
	if len(ends) < most {
		return time.Time{}
	}
	slices.SortFunc(ends, time.Time.Compare)
	return ends[len(ends)-most]
}

// banned is the rest after a ban report. Reports during the rest are about the
// same ban: uses under way when it began. A ban counts as repeated until a
// whole longest rest passed without one.
func (c Cooldown) banned(b Ban, now time.Time) Cooldown {
	if b.Initial <= 0 || now.Before(c.BannedUntil) {
		return c
	}
	if now.After(c.BannedUntil.Add(b.Max)) {
		c.Strikes = 0
	}
	c.Strikes++
	c.BannedUntil = now.Add(b.Rest(c.Strikes))
	c.Until = later(c.Until, c.BannedUntil)
	c.Forget = later(c.Forget, later(c.Until, c.BannedUntil.Add(b.Max)))
	return c
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// restsOn names the cooldown that a use or ban of the key through the pool
// writes. An unknown exit IP is nobody else's, so the key itself rests.
func restsOn(p Pool, k *Key, target string) CooldownID {
	if p.Scope == ScopeExitIP && k.ExitIP != "" {
		return CooldownID{ScopeExitIP, k.ExitIP, target}
	}
	return CooldownID{ScopeKey, k.Name, target}
}

// restsBy names the cooldowns that keep the key from a target, whichever pool
// wrote them.
func restsBy(k *Key, target string) []CooldownID {
	ids := []CooldownID{{ScopeKey, k.Name, target}}
	if k.ExitIP != "" {
		ids = append(ids, CooldownID{ScopeExitIP, k.ExitIP, target})
	}
	return ids
}
