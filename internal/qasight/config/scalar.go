package config

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/pool"
)

// The functions of this file say what is wrong with a value and what to do, or
// "" when nothing is.

// nameFault holds names to the grammar of keys.
func nameFault(s string) string {
	const grammar = "letters, digits, '.', '_' and '-'"
	if len(s) > lease.MaxFixedName {
		return fmt.Sprintf("%s has %d bytes: a name has at most %d: shorten it", quoted(s), len(s), lease.MaxFixedName)
	}
	if lease.ValidName(s) == nil {
		return ""
	}
	if s == "" {
		return "the name is empty: give it one"
	}
	for _, c := range s {
		if c >= utf8.RuneSelf || lease.ValidName("x"+string(c)) != nil {
			return fmt.Sprintf("%s has the character %q: use %s only", quoted(s), c, grammar)
		}
	}
	return fmt.Sprintf("%s begins with %q: begin it with a letter or digit", quoted(s), s[0])
}

// prefixFault holds prefixes to what a key can begin with, which is what a key
// can be, and shorter.
func prefixFault(s string) string {
	if s == "" {
		return "it is empty, and every name begins with that: say what your machines' names begin with, such as qa-"
	}
	if len(s) > maxPrefix {
		return fmt.Sprintf("%s has %d bytes: a prefix has at most %d: shorten it", quoted(s), len(s), maxPrefix)
	}
	return nameFault(s)
}

// plainFault refuses texts without quotes that YAML does not have and the parser
// reads in its own way: it drops tabs, and two words become one.
func plainFault(n ast.Node) string {
	if !plain(n) {
		return ""
	}
	tk := n.GetToken()
	switch {
	case strings.Contains(strings.TrimSpace(tk.Origin), "\t"):
		return "a tab stands in a text without quotes: use blanks, or quote the text"
	case strings.IndexAny(tk.Value, ",[]{}#&*!|>'\"%@`") == 0:
		return fmt.Sprintf("a text without quotes begins with %q: quote the text", tk.Value[0])
	}
	return ""
}

func itemFault(f field, s string) string {
	if f.kind == names {
		return nameFault(s)
	}
	if all := everyVerb(); !slices.Contains(all, s) {
		return fmt.Sprintf("there is no verb %s: %s", quoted(s), alike(s, all))
	}
	return ""
}

// addressFault holds a server's URL to what a client can use. A token goes with
// each request, so it never travels unencrypted beyond this machine.
func addressFault(s string) string {
	const form = "write it as https://HOST:PORT"
	u, err := url.Parse(s)
	switch {
	case err != nil || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		// The parser's text would repeat the URL, and with it a password.
		return "this is no URL: " + form
	case u.Scheme != "http" && u.Scheme != "https":
		return "the URL must begin with https:// (or http:// on this machine): " + form
	case u.User != nil:
		return "the URL holds a user: leave it out; the token says who you are"
	case u.Hostname() == "":
		return "the URL has no host: " + form
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "#"):
		return "the URL holds a query or fragment: " + form
	case u.Path != "" && u.Path != "/":
		return "the URL has a path: " + form
	case badPort(u):
		return fmt.Sprintf("%s is no port: use 1 to 65535", quoted(u.Port()))
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return "http would send your token unencrypted to " + quoted(u.Hostname()) + ": use https (http is for localhost, 127.0.0.1 and [::1])"
	}
	return ""
}

func badPort(u *url.URL) bool {
	if u.Port() == "" {
		// A colon without a port is one that was forgotten.
		return strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.Atoi(u.Port())
	return err != nil || n < 1 || n > 65535
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// commandFault refuses what no shell can run, and what was meant as a switch.
func commandFault(f field, s string, n ast.Node) string {
	either, out := "", "" // a field that must be there cannot be left out
	if !f.required {
		either, out = ", or leave the field out", "leave the field out, or "
	}
	switch {
	case strings.TrimSpace(s) == "":
		return "the command is empty: write one" + either
	case len(s) > maxCommand:
		return fmt.Sprintf("the command has %d bytes: at most %d are possible: put it into a script and call that", len(s), maxCommand)
	case strings.ContainsRune(s, 0):
		return "the command holds a NUL character, which no shell takes: delete it"
	}
	if !plain(n) {
		return ""
	}
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return fmt.Sprintf("%s is a number, not a command: write one, or quote it", s)
	case *ast.BoolNode:
		return fmt.Sprintf("%s is no command but a switch, and there is none: %swrite %q in quotes for the program of that name", s, out, s)
	}
	if slices.Contains([]string{"yes", "no", "on", "off", "y", "n"}, strings.ToLower(s)) {
		return fmt.Sprintf("%s reads as a switch, and there is none: %swrite %q in quotes for the program of that name", s, out, s)
	}
	return ""
}

func durationOf(f field, s string) (time.Duration, string) {
	if numbers.MatchString(s) {
		if f.low == 0 && s == "0" {
			return 0, "0 of what? write 0s"
		}
		return 0, fmt.Sprintf("%.20s of what? write %.20ss or %.20sm", s, s, s)
	}
	if m := days.FindStringSubmatch(s); m != nil {
		n, _ := strconv.Atoi(m[1])
		return 0, fmt.Sprintf("there is no unit for days: write %dh", 24*n)
	}
	d, err := time.ParseDuration(s)
	switch {
	case err == nil && d < 0:
		return 0, fmt.Sprintf("%s is negative: write %s to %s", quoted(s), pool.Short(time.Duration(f.low)), pool.Short(time.Duration(f.high)))
	case !durations.MatchString(s):
		return 0, fmt.Sprintf("%s is no time: write one such as 90s, 30m or 1h30m", quoted(s))
	case err != nil || d > time.Duration(f.high):
		return 0, fmt.Sprintf("%.40s is too long: write %s to %s", s, pool.Short(time.Duration(f.low)), pool.Short(time.Duration(f.high)))
	case d < time.Duration(f.low):
		return 0, fmt.Sprintf("%s is too short: write %s to %s", s, pool.Short(time.Duration(f.low)), pool.Short(time.Duration(f.high)))
	case f.whole && d%time.Second != 0:
		return 0, fmt.Sprintf("%s is not whole seconds: write %s or %s", s, pool.Short(d.Truncate(time.Second)), pool.Short(d.Truncate(time.Second)+time.Second))
	}
	return d, ""
}

func countOf(f field, s string, n ast.Node) (int, string) {
	if !plain(n) {
		return 0, fmt.Sprintf("%s is a text, not a number: write it without quotes", quoted(s))
	}
	if !integers.MatchString(s) {
		return 0, fmt.Sprintf("%s is no plain whole number: write %d to %d", quoted(s), f.low, f.high)
	}
	v, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil || v > f.high:
		return 0, fmt.Sprintf("%.20s is too much: write %d to %d", s, f.low, f.high)
	case v < f.low:
		return 0, fmt.Sprintf("%s is too little: write %d to %d", s, f.low, f.high)
	}
	return int(v), ""
}
