package filecmd

// For tests.
var (
	ProjectOf = projectOf
	ScriptOf  = scriptOf
	Problems  = problems
)

// Problem is one thing that is wrong with a file.
type Problem = problem
