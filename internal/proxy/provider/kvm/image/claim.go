package image

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// The grammar of a claim's name, all of it in [a-z0-9-]:
//
//	fleetdesk-claim-INSTALLATION-PLACE-HOLDER-PERIOD-BEAT
//
// INSTALLATION and PLACE are 10 hex digits, HOLDER 8 to 32 of [a-z0-9], PERIOD
// whole milliseconds and BEAT a number, both decimal without leading zeros. What
// does not fit to the letter is no claim. The name is all there is of it: a
// volume's content takes a second call, and may be half written.
const (
	claimPrefix          = "fleetdesk-claim-"
	placeChars           = 10
	minHolder, maxHolder = 8, 32
)

// Claim is what a claim's name says.
type Claim struct {
	// Place tells apart who claims in one pool for one holder: see [Place].
	Place, Holder string
	// Period is above zero, in whole milliseconds.
	Period time.Duration
	Beat   uint64

	installation string
}

// Place is of one host of one provider of an installation. Two providers of an
// operator, and two hosts that share a folder, each keep a claim of their own in
// it.
func Place(installation, provider, host string) string {
	return digits(placeChars, installation, provider, host)
}

// ValidHolder reports whether s may be a claim's holder.
func ValidHolder(s string) bool {
	return len(s) >= minHolder && len(s) <= maxHolder && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// ClaimName is the name of the volume that is the claim.
func ClaimName(installation string, c Claim) string {
	return claimPrefix + digits(installChars, installation) + "-" + c.Place + "-" + c.Holder + "-" +
		strconv.FormatInt(c.Period.Milliseconds(), 10) + "-" + strconv.FormatUint(c.Beat, 10)
}

// ParseClaim reads a volume's name; ok is false for all that is no claim.
func ParseClaim(name string) (c Claim, ok bool) {
	rest, ours := strings.CutPrefix(name, claimPrefix)
	parts := strings.Split(rest, "-")
	if !ours || len(parts) != 5 || !isLowerHex(parts[0], installChars) || !isLowerHex(parts[1], placeChars) || !ValidHolder(parts[2]) {
		return Claim{}, false
	}
	period, err := strconv.ParseInt(parts[3], 10, 64)
	if err != nil || period <= 0 || period > math.MaxInt64/int64(time.Millisecond) || strconv.FormatInt(period, 10) != parts[3] {
		return Claim{}, false
	}
	beat, err := strconv.ParseUint(parts[4], 10, 64)
	if err != nil || strconv.FormatUint(beat, 10) != parts[4] {
		return Claim{}, false
	}
	return Claim{
		Place: parts[1], Holder: parts[2], Period: time.Duration(period) * time.Millisecond, Beat: beat, installation: parts[0],
	}, true
}

// Of reports whether the claim was made for that installation.
func (c Claim) Of(installation string) bool {
	return c.installation == digits(installChars, installation)
}
