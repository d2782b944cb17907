package proc

import (
	"encoding/json"
	"io"
	"syscall"
	"time"
)

// control is the descriptor through which a supervisor and its starter talk: the
// two ends of a stream of JSON values. Its end tells each that the other is dead.
const control = 3

// order is the first thing that a supervisor is told: what to run. Its texts are
// bytes, since JSON would change those that are no UTF-8.
type order struct {
	Path       []byte
	Args, Env  [][]byte
	Dir        []byte
	Grace      time.Duration
	Timeout    time.Duration // 0 for none
	Until      time.Duration // on the clock of Now; 0 for none
	Foreground bool          // the standard input is the terminal that it gets
	Session    bool          // of its own
}

// request is whatever a supervisor is told later: one of these.
type request struct {
	Until  *time.Duration `json:",omitempty"` // 0 for none
	Signal syscall.Signal `json:",omitempty"`
	Stop   Ended          `json:",omitempty"` // end it, for this reason
}

// report is what a supervisor tells: that it started the command or could not,
// how the command's first process ended, and that nothing of the group is left.
type report struct {
	Started int                 `json:",omitempty"` // the group
	Errno   syscall.Errno       `json:",omitempty"`
	Refused string              `json:",omitempty"` // what is no errno
	Exited  *syscall.WaitStatus `json:",omitempty"`
	Over    bool                `json:",omitempty"`
	Stuck   bool                `json:",omitempty"` // over, but something is left
	Ended   Ended               `json:",omitempty"` // with Over
}

// say writes a message. Whoever is dead does not hear it, and that shows by
// itself: so nobody has to look at the error.
func say(to io.Writer, message any) error { return json.NewEncoder(to).Encode(message) }

func toBytes(texts []string) [][]byte {
	out := make([][]byte, len(texts))
	for i, t := range texts {
		out[i] = []byte(t)
	}
	return out
}

func toStrings(texts [][]byte) []string {
	out := make([]string, len(texts))
	for i, t := range texts {
		out[i] = string(t)
	}
	return out
}
