package humanrun

import "fleetdesk/internal/qasight/config"

// ParseList reads a list in pieces of so many bytes.
func ParseList(text string, step int) ([]string, error) {
	p := newParser(nil)
	for len(text) > 0 {
		n := min(step, len(text))
		if _, err := p.Write([]byte(text[:n])); err != nil {
			return nil, p.wrong
		}
		text = text[n:]
	}
	if err := p.end(); err != nil {
		return nil, err
	}
	return p.sorted(), nil
}

// LastGuard is the last look before a command.
func LastGuard(plan *Plan, p *config.Pool, key string, ran bool) error {
	return guard(plan, p, key, ran)
}
