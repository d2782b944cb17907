package token

// Parse takes the text of a token apart.
func Parse(text string) (id string, secret [32]byte, ok bool) { return parse(text) }

// Format is its reverse.
func Format(id string, secret [32]byte) Secret { return format(id, secret) }
