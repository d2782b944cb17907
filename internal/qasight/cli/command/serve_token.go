package command

import (
	"context"
	"os"
	"path/filepath"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
)

// TokenFile is the file of a team server's token in the person's configuration
// folder, where [Factory.Token] looks last.
func (f *Factory) TokenFile(server string) string { return f.tokenFile(server) }

// TokenVariable is the variable of the environment that [Factory.Token] takes a
// token from before it looks at [Factory.TokenFile]; "" for none.
func (f *Factory) TokenVariable() string {
	for _, name := range []string{tokenVariable, tokenFileVariable} {
		if f.Getenv(name) != "" {
			return name
		}
	}
	return ""
}

// SaveToken keeps a team server's token in [Factory.TokenFile], which only its
// owner can read, in place of the one that was there. After a crash the file holds
// one of both, whole. Errors are Invalid and name the file.
func (f *Factory) SaveToken(server string, t client.Token) error {
	path := f.tokenFile(server)
	if err := replaceFile(path, []byte(string(t)+"\n")); err != nil {
		return fault.Errorf(fault.Invalid, "the token cannot be kept in %s: %w: look at the folder's owner and mode, or put the token into %s",
			path, err, tokenVariable)
	}
	return nil
}

// replaceFile makes path a file of mode 0600 that holds text.
func replaceFile(path string, text []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// Its mode is 0600 whatever the umask.
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(tmp.Name())
		}
	}()
	_, err = tmp.Write(text)
	if err == nil {
		err = tmp.Sync()
	}
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// Interrupt is err, of a command that ctx of [Factory.UntilSignal] was for: when a
// signal ended it, the process ends with that signal's code.
func Interrupt(ctx context.Context, err error) error {
	if cause, ok := context.Cause(ctx).(Interrupted); ok && err != nil { //nolint:errorlint // it is never wrapped
		return Exit(cause.ExitCode(), cause)
	}
	return err
}
