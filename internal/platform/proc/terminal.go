package proc

import (
	"errors"
	"os"
	"syscall"
)

// ownTerminal returns the terminal that the command is to have in the foreground:
// its input, when that is the one that this process's group has in the
// foreground. Else nil.
func ownTerminal(c Command) *os.File {
	if c.Files == nil || foreground(c.Files.In) != syscall.Getpgrp() {
		return nil
	}
	return c.Files.In
}

// takeForeground takes the terminal back from the group that ended. It is left
// to a living other group: somebody gave it away meanwhile.
func takeForeground(terminal *os.File, pgid int) {
	switch has := foreground(terminal); {
	case has == 0 || has == syscall.Getpgrp():
	case has == pgid || errors.Is(syscall.Kill(-has, 0), syscall.ESRCH) || onlyZombies(has):
		setForeground(terminal, syscall.Getpgrp())
	}
}
