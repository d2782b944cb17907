package filecmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
)

func newInit(f *command.Factory) *cobra.Command {
	var project string
	c := &cobra.Command{
		Use: "init", Short: "Write a commented qasight.yaml to begin with", Args: command.NoArgs,
		Long: `Writes a commented qasight.yaml into this folder. A file that is there already is
never touched.`,
		Example: `  qasight init
  qasight init --project shop-tests`,
		RunE: func(*cobra.Command, []string) error { return runInit(f, project) },
	}
	c.Flags().StringVar(&project, "project", "", "the project's name; default: that of this folder")
	return c
}

// initialized is what --json prints.
type initialized struct {
	File    string `json:"file"`
	Project string `json:"project"`
}

func runInit(f *command.Factory, project string) error {
	dir, err := os.Getwd()
	if err != nil {
		return fault.Errorf(fault.Invalid, "the working folder cannot be told: %w", err)
	}
	path := f.File
	if path == "" {
		path = config.FileName
	} else if dir, err = filepath.Abs(filepath.Dir(path)); err != nil {
		return fault.Errorf(fault.Invalid, "--file: %w", err)
	}
	if project == "" {
		project = projectOf(dir)
	}
	if !fits(project) {
		return fault.Errorf(fault.Invalid, "--project %q is no name: use letters, digits, '.', '_' and '-', at most %d", command.Plain(project), lease.MaxFixedName)
	}
	above, found := config.Find(dir)
	if err := writeNew(path, config.Template(project)); err != nil {
		return err
	}
	if found == nil && filepath.Dir(above) != dir {
		f.Sayf("note: in this folder and below, this file is used instead of %s", above)
	}
	if f.JSON {
		return f.PrintJSON(initialized{path, project})
	}
	_, err = fmt.Fprintf(f.Out(), `wrote %s for project %s

Next:
  1. Open it, and put your own keys under items.
  2. qasight config check
  3. qasight exec devices -- sh -c 'echo "I have $QASIGHT_KEY"'
  4. qasight pool status
`, path, project)
	return err
}

// projectOf makes a project's name of its folder's.
func projectOf(dir string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)):
			return r
		}
		return -1
	}, filepath.Base(dir))
	name = strings.TrimLeft(name, "._-")
	name = strings.TrimRight(name[:min(len(name), lease.MaxFixedName)], "._-")
	if name == "" || !fits(name) { // such as null
		return "project"
	}
	return name
}

// fits tells whether a file can have that project: its own rules say what a name may
// be.
func fits(project string) bool {
	c, err := config.Parse(config.FileName, ".", config.Template(project))
	return err == nil && c.Project == project
}

// writeNew writes a file that must not exist.
func writeNew(path string, text []byte) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return fault.WithCode(fault.Errorf(fault.Invalid, "%s is there already, and is left as it is: `qasight config check` says whether it is well-formed", path), "exists")
	}
	if err == nil {
		_, err = out.Write(text)
		if e := out.Close(); err == nil {
			err = e
		}
		if err != nil {
			os.Remove(path) // half of it would be taken for the whole
		}
	}
	if err != nil {
		return fault.Errorf(fault.Invalid, "the file cannot be written: %w: look at the folder's owner and mode", err)
	}
	return nil
}
