package selection_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// processor is the processor's time that this process and those below it, among
// them PostgreSQL, have used so far, in hundredths of a second. Unlike a rate it
// depends little on what else the machine does. What cannot be read counts
// nothing.
func processor() (sum time.Duration) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	parents, used := map[int]int{}, map[int]time.Duration{}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			continue // it ended
		}
		// The name, in parentheses, may hold anything.
		head, rest, _ := strings.Cut(string(raw), " (")
		fields := strings.Fields(rest[strings.LastIndex(rest, ")")+1:])
		if len(fields) < 13 {
			continue
		}
		var n [4]int
		for i, text := range []string{head, fields[1], fields[11], fields[12]} { // pid, ppid, utime, stime
			n[i], _ = strconv.Atoi(text)
		}
		parents[n[0]], used[n[0]] = n[1], time.Duration(n[2]+n[3])*tick
	}
	for pid, t := range used {
		above := pid
		for above > 1 && above != os.Getpid() {
			above = parents[above]
		}
		if above == os.Getpid() {
			sum += t
		}
	}
	return sum
}

// tick is the kernel's unit of time in /proc: a hundredth of a second, on every
// architecture that Go runs on.
const tick = 10 * time.Millisecond
