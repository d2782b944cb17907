package servecmd

// For tests.
var (
	Lifetime = lifetime
	CheckURL = checkURL
)
