package config

// FollowReading is Follow over another way to read.
var FollowReading = follow

// MaxDepth is how deep a file may nest.
const MaxDepth = maxDepth
