package proc

import "time"

// KeptOf is what Result.Output would be of pieces that came in turn from the two
// outputs, even ones from the one and odd ones from the other, when both is set,
// and else all from one.
func KeptOf(pieces [][]byte, limit int, hide []string, both bool) string {
	c := newCapture(limit)
	streams := []*stream{{hide: hider{secrets: secretsOf(hide)}}, {hide: hider{secrets: secretsOf(hide)}}}
	for i, p := range pieces {
		if !both {
			i = 0
		}
		c.take(streams[i%2], p)
	}
	for _, s := range streams {
		c.rest(s)
	}
	return c.text()
}

// HeldBack is the most memory, in bytes, that the pieces make a hider hold back.
func HeldBack(pieces [][]byte, hide []string) int {
	h, most := hider{secrets: secretsOf(hide)}, 0
	for _, p := range pieces {
		h.next(p)
		most = max(most, len(h.pending))
	}
	return most
}

// Marks are when a deadline demands TERM and KILL.
func Marks(until, now, grace time.Duration) (term, kill time.Duration) {
	return marks(until, now, grace)
}
