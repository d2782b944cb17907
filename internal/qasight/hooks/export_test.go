package hooks

// Reason is for tests.
func Reason(what, output string) string { return reason(what, output) }
