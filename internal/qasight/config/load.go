package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/pool"
)

// Load reads and checks a file. Errors are Invalid with the code "config", and
// read "qasight.yaml:12:7: what is wrong: what to do"; of several the first ten are
// told, a line each, in the file's order, and a last line counts the rest. A file
// that is not there is Invalid with the code "no_config".
func Load(path string) (*File, error) {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, invalid("%s: its folder cannot be found: change to a folder that exists: %w", path, err)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.WithCode(fault.Errorf(fault.Invalid, "there is no file %s: `qasight init` writes one to begin with", path), "no_config")
	case err != nil:
		return nil, unreadable(path, err)
	case info.IsDir():
		return nil, invalid("%s is a folder: name the file in it", path)
	case !info.Mode().IsRegular():
		return nil, invalid("%s is no regular file (%s): commands run in its folder, so it must have one", path, info.Mode().Type())
	}
	in, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer in.Close()
	// One more byte than is possible, for Parse to see that it is too much.
	text, err := io.ReadAll(io.LimitReader(in, MaxSize+1))
	if err != nil {
		return nil, unreadable(path, err)
	}
	return Parse(path, dir, text)
}

func unreadable(path string, err error) error {
	if cause, ok := errors.AsType[*fs.PathError](err); ok {
		err = cause.Err
	}
	return invalid("%s cannot be read: look at its permissions and at those of its folder: %w", path, err)
}

// Find returns the path of the FileName in dir or in the nearest folder above it,
// not beyond the root of a file system. Without one it is Invalid with the code
// "no_config". One in a folder above that somebody else put there is refused with
// the code "foreign": commands of it would run in this person's name.
func Find(dir string) (string, error) {
	start, err := filepath.Abs(dir)
	if err != nil {
		return "", invalid("the folder %s cannot be found: change to one that exists: %w", dir, err)
	}
	for at := start; ; {
		path := filepath.Join(at, FileName)
		// A folder or a dangling link of that name is found too: Load says what is
		// wrong with it, while another file further up would be a surprise.
		switch _, err := os.Lstat(path); {
		case err == nil && at != start && foreign(path, start):
			return "", fault.WithCode(fault.Errorf(fault.Invalid,
				"%s belongs to somebody else than you and %s, and its commands would run in your name: if you trust it, name it with --file", path, start), "foreign")
		case err == nil:
			return path, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", unreadable(path, err)
		}
		above := filepath.Dir(at)
		if above == at || otherSystem(at, above) {
			return "", fault.WithCode(fault.Errorf(fault.Invalid,
				"there is no %s in %s or a folder above it: %s", FileName, start, instead(start)), "no_config")
		}
		at = above
	}
}

// instead says what to do where no file was found.
func instead(dir string) string {
	const other = "qasight.yml"
	if _, err := os.Stat(filepath.Join(dir, other)); err == nil {
		return fmt.Sprintf("there is a %s: name it %s, or give it with --file", other, FileName)
	}
	return "`qasight init` writes one to begin with"
}

// Parse is Load of a text that was read from name, whose folder is dir.
func Parse(name, dir string, text []byte) (*File, error) {
	p := &problems{file: name}
	if len(text) > MaxSize {
		p.add(Position{1, 1}, "the file has more than %d bytes: split the project", MaxSize)
		return nil, p.err()
	}
	root := tree(text, p)
	if root == nil {
		return nil, p.err()
	}
	v := reader{p}.section(format(), "the file", position(root), root, "")
	f := build(v, p)
	if err := p.err(); err != nil {
		return nil, err
	}
	f.Path, f.Dir = name, dir
	return f, nil
}

// build makes a file of its fields and holds it to the rules between them. Where
// a problem was noted already, what it returns is of no use.
func build(v values, p *problems) *File {
	f := &File{Project: v.good["project"].text, Server: v.good["server"].text}
	known := map[string]bool{}
	for _, e := range v.good["pools"].many {
		known[e.name.text] = true
		f.Pools = append(f.Pools, buildPool(e, p))
	}
	_, pools := v.good["pools"]
	for _, e := range v.good["stages"].many {
		s := Stage{
			Name: e.name.text, Command: e.values.good["command"].text, Workers: e.values.good["workers"].count, At: e.name.at,
		}
		if of, ok := e.values.good["pool"]; ok {
			s.Pool = of.text
			if pools && !known[s.Pool] {
				p.add(of.at, "there is no pool %s: %s", quoted(s.Pool), alike(s.Pool, f.poolNames()))
			}
		}
		f.Stages = append(f.Stages, s)
	}
	return f
}

func buildPool(e entry, p *problems) Pool {
	v := e.values
	items := v.good["items"].list
	_, check := v.good["on_check"]
	_, reset := v.good["on_reset"]
	out := Pool{
		Pool: pool.Pool{
			Name: e.name.text, Items: make([]string, len(items)), TTL: v.good["lease_ttl"].duration, Cooldown: v.good["cooldown"].duration, Check: check, Reset: reset,
		},
		Hooks: Hooks{Check: v.good["on_check"].text, Reset: v.good["on_reset"].text, Timeout: v.good["hook_timeout"].duration},
		At:    e.name.at,
		items: make(map[string]Position, len(items)),
	}
	for i, item := range items {
		out.Items[i] = item.text
		out.items[item.text] = item.at
	}
	if given, ok := v.good["provider"]; ok {
		out.Provider = buildProvider(given.single, p)
	}
	return out
}

// buildProvider holds a provider to the rule that a verb is allowed only with
// what bounds it.
func buildProvider(v values, p *problems) *Provider {
	out := &Provider{
		List: v.good["list"].text, Create: v.good["create"].text, Destroy: v.good["destroy"].text,
		Prefix: v.good["name_prefix"].text, MaxItems: v.good["max_items"].count, Timeout: v.good["timeout"].duration,
	}
	for _, verb := range v.good["allow"].list {
		out.Allow = append(out.Allow, Verb(verb.text))
		for _, field := range needs(Verb(verb.text)) {
			if _, given := v.given[field]; !given {
				p.add(verb.at, "%s is allowed, and the provider has no %s: add it, or take %s out of allow", verb.text, field, verb.text)
			}
		}
	}
	return out
}
