package proxyset

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"fleetdesk/internal/core/lease"
)

// maxBans bounds what one question about bans returns: those with the most
// targets come first.
const maxBans = 20_000

// banBook has the last answer about bans for all sets: it is the same for each.
type banBook struct {
	ask func(ctx context.Context, targets, limit int) ([]lease.BanCount, error)
	log *slog.Logger

	mu sync.Mutex
	// targets is from how many targets on it is asked, answered from how many on
	// the last answer counts; 0 for none. tried is when it was last asked.
	targets, answered int
	tried             time.Time
	last              tally
}

// counts returns what is banned by at least that many targets, and whether that
// is known. While the desk does not answer, its last answer stands.
func (b *banBook) counts(ctx context.Context, targets int, now time.Time) (tally, bool) {
	if b.ask == nil {
		return tally{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.targets == 0 || targets < b.targets {
		b.targets, b.tried = targets, time.Time{}
	}
	if b.tried.IsZero() || now.Sub(b.tried) >= bansPause/2 || now.Before(b.tried) {
		b.tried = now
		asked, cancel := context.WithTimeout(ctx, deskTimeout)
		found, err := b.ask(asked, b.targets, maxBans)
		cancel()
		if err != nil {
			b.log.Warn("what is banned is not known", "error", err)
		} else {
			b.answered, b.last = b.targets, tallyOf(found)
		}
	}
	return b.last, b.answered > 0 && b.answered <= targets
}
