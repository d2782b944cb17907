package poolcmd

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// readLine reads one line of what a person types. It waits for input, not for
// more of it than a line, and no longer than ctx: a read that is under way could
// not be ended.
func readLine(ctx context.Context, in *os.File) (string, error) {
	raw, err := in.SyscallConn()
	if err != nil {
		return "", err
	}
	var line []byte
	for len(line) < maxAnswer {
		ready := false
		if err := raw.Control(func(fd uintptr) {
			const pause = 100 // milliseconds
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, pollErr := unix.Poll(fds, pause)
			ready = pollErr == nil && n > 0
		}); err != nil {
			return "", err
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if !ready {
			continue
		}
		var c [1]byte
		n, err := in.Read(c[:])
		switch {
		case n == 1 && c[0] == '\n':
			return string(line), nil
		case n == 1:
			line = append(line, c[0])
		case errors.Is(err, io.EOF):
			return "", errors.New("the input ended")
		case err != nil:
			return "", err
		}
	}
	return "", errors.New("the answer is too long")
}
