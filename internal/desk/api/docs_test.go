package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	desktoken "fleetdesk/internal/desk/token"
	"fleetdesk/internal/platform/sqldb"
)

// page is the document that this file holds to the code.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// example is one command of the page, and the answer that is shown behind it.
type example struct {
	line            int
	command, answer string
}

var blocks = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

func examples(t *testing.T, text string) (all []example) {
	t.Helper()
	for _, m := range blocks.FindAllStringSubmatchIndex(text, -1) {
		language, body := text[m[2]:m[3]], text[m[4]:m[5]]
		line := 1 + strings.Count(text[:m[0]], "\n")
		switch language {
		case "sh":
			all = append(all, example{line: line, command: body})
		case "http":
			if len(all) == 0 || all[len(all)-1].answer != "" {
				t.Errorf("line %d: an answer without its command", line)
				continue
			}
			all[len(all)-1].answer = body
		}
	}
	return all
}

// words splits a command as a shell does: quotes, and a backslash at a line's
// end. Variables are put in, but not between single quotes.
func words(command string, vars map[string]string) (all []string, err error) {
	var word strings.Builder
	in, quote := false, rune(0)
	end := func() {
		if in {
			all = append(all, word.String())
		}
		word.Reset()
		in = false
	}
	for i := 0; i < len(command); i++ {
		c := command[i]
		switch {
		case quote == '\'':
			if c == '\'' {
				quote = 0
			} else {
				word.WriteByte(c)
			}
		case c == '$':
			n := i + 1
			for n < len(command) && (command[n] == '_' || 'A' <= command[n] && command[n] <= 'Z') {
				n++
			}
			value, ok := vars[command[i+1:n]]
			if !ok {
				return nil, fmt.Errorf("there is no variable $%s", command[i+1:n])
			}
			word.WriteString(value)
			in, i = true, n-1
		case quote == '"':
			if c == '"' {
				quote = 0
			} else {
				word.WriteByte(c)
			}
		case c == '\'' || c == '"':
			in, quote = true, rune(c)
		case c == '\\' && i+1 < len(command) && command[i+1] == '\n':
			i++
			end()
		case c == ' ' || c == '\n':
			end()
		case strings.IndexByte(`&;|<>()*?#~[]{}`+"`\\", c) >= 0:
			return nil, fmt.Errorf("a shell would read %q in its own way", string(c))
		default:
			in = true
			word.WriteByte(c)
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote is not closed")
	}
	end()
	return all, nil
}

// curl makes the request that the command would.
func curl(ctx context.Context, args []string) (*http.Request, error) {
	if len(args) < 2 || args[0] != "curl" {
		return nil, fmt.Errorf("no curl command: %q", args)
	}
	method, target, body := "", "", ""
	header := http.Header{}
	for i := 1; i < len(args); i++ {
		switch a := args[i]; a {
		case "-N":
		case "-X", "-H", "-d":
			if i++; i == len(args) {
				return nil, fmt.Errorf("%s lacks its value", a)
			}
			switch a {
			case "-X":
				method = args[i]
			case "-d":
				body = args[i]
			case "-H":
				name, value, ok := strings.Cut(args[i], ": ")
				if !ok {
					return nil, fmt.Errorf("no header: %s", args[i])
				}
				header.Add(name, value)
			}
		default:
			if strings.HasPrefix(a, "-") || target != "" {
				return nil, fmt.Errorf("what is %s?", a)
			}
			target = a
		}
	}
	if body != "" && header.Get("Content-Type") == "" {
		return nil, fmt.Errorf("curl would call the body a form: name its type")
	}
	if method == "" {
		method = http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err == nil {
		req.Header = header
	}
	return req, err
}

// shape compares what is shown with what came: the same fields of the same kinds
// everywhere. Only words that say what something is must be equal.
func shape(path string, shown, got any) (wrong []string) {
	switch s := shown.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return []string{fmt.Sprintf("%s is %v, not an object", path, got)}
		}
		names := map[string]bool{}
		for n := range s {
			names[n] = true
		}
		for n := range g {
			names[n] = true
		}
		for _, n := range slices.Sorted(maps.Keys(names)) {
			_, inShown := s[n]
			_, inGot := g[n]
			switch {
			case !inShown:
				wrong = append(wrong, fmt.Sprintf("%s.%s came and is not shown", path, n))
			case !inGot:
				wrong = append(wrong, fmt.Sprintf("%s.%s is shown and did not come", path, n))
			default:
				wrong = append(wrong, shape(path+"."+n, s[n], g[n])...)
			}
		}
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(s) {
			return []string{fmt.Sprintf("%s is %v, want %d elements", path, got, len(s))}
		}
		for i := range s {
			wrong = append(wrong, shape(fmt.Sprintf("%s[%d]", path, i), s[i], g[i])...)
		}
	case string:
		g, ok := got.(string)
		same := strings.HasSuffix(path, ".type") || strings.HasSuffix(path, ".state") || strings.HasSuffix(path, ".kind") ||
			strings.HasSuffix(path, ".key") || strings.HasSuffix(path, ".name") || strings.HasSuffix(path, ".account") ||
			strings.HasSuffix(path, ".title") || strings.HasSuffix(path, ".url") || strings.HasSuffix(path, ".role") || strings.HasSuffix(path, ".next")
		if !ok || (s == "") != (g == "") || same && s != g {
			wrong = append(wrong, fmt.Sprintf("%s is %v, shown as %q", path, got, s))
		}
	case float64:
		g, ok := got.(float64)
		exact := strings.HasSuffix(path, ".ttl") || strings.HasSuffix(path, ".status") || strings.HasSuffix(path, ".port")
		// How long a request waited that did not have to is up to the machine.
		idle := strings.HasSuffix(path, ".waited") && s == 0 && g < 1
		if !ok || exact && s != g || (s == 0) != (g == 0) && !idle {
			wrong = append(wrong, fmt.Sprintf("%s is %v, shown as %v", path, got, s))
		}
	default:
		if shown != got {
			wrong = append(wrong, fmt.Sprintf("%s is %v, shown as %v", path, got, shown))
		}
	}
	return wrong
}

// documented is a server as the page has it: over a SQLite file, with the pools
// and accounts that the examples speak of.
type documented struct {
	*desk
	vars    map[string]string
	service *service.Service
}

// namedAccess reaches the proxies, and has nothing to say of other keys.
type namedAccess struct{}

func (namedAccess) Access(ctx context.Context, key, uid string, attributes map[string]string) (client.ProxyAccess, error) {
	if uid == "" {
		return client.ProxyAccess{}, nil
	}
	return fixedAccess{}.Access(ctx, key, uid, attributes)
}

func serveDocumented(t *testing.T) *documented {
	t.Helper()
	db, err := sqldb.Open(t.Context(), sqldb.Options{Path: filepath.Join(t.TempDir(), "desk.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	tokens := desktoken.New(desktoken.Options{Store: db.Tokens(), Directory: db.Tokens()})
	bearers := map[string]string{}
	for _, a := range []token.Account{{Name: "ann", Role: token.Admin}, {Name: "ci", Role: token.Runner}, {Name: "nightly", Role: token.Runner}} {
		if _, err := tokens.CreateAccount(t.Context(), a.Name, a.Role); err != nil {
			t.Fatal(err)
		}
		secret, _, err := tokens.IssueFor(t.Context(), a.Name, 0)
		if err != nil {
			t.Fatal(err)
		}
		bearers[a.Name] = secret.Reveal()
	}
	s := run(t, db.Leases(), service.Limits{})
	d := &documented{service: s}
	d.desk = serve(t, func(o *api.Options) {
		o.Auth, o.Accounts, o.Actions, o.Desk, o.Access, o.Selection = tokens, tokens, db.Actions(), s, namedAccess{}, naming{}
	})
	d.vars = map[string]string{"DESK": d.url, "TOKEN": bearers["ci"], "ADMIN": bearers["ann"]}
	do := func(ops ...lease.Op) []lease.Result {
		t.Helper()
		results, err := s.Do(t.Context(), ops...)
		for _, r := range results {
			if r.Err != nil {
				err = r.Err
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		return results
	}
	do(
		lease.Publish{Pool: lease.Pool{Name: "win", By: "ann"}, Items: []string{"win-01", "win-02"}},
		lease.Publish{Pool: lease.Pool{Name: "mac", By: "ann"}, Items: []string{"mac-1"}},
	)
	epoch := do(lease.OpenEpoch{Owner: "operator"})[0].Epoch
	do(
		lease.PutPool{Epoch: epoch, Pool: lease.Pool{Name: "crawl.eu"}},
		lease.PutKey{Epoch: epoch, Key: "crawl.home-1", UID: "1f0b3c9e", Pools: []string{"crawl.eu"}, Attributes: map[string]string{"tier": "eu"}},
		lease.PutPool{Epoch: epoch, Pool: lease.Pool{Name: "crawl.shop", Cooldown: 30 * time.Second}},
		lease.PutKey{Epoch: epoch, Key: "crawl.home-2", UID: "2f0b3c9e", Pools: []string{"crawl.shop"}, ExitIP: "203.0.113.7", Attributes: map[string]string{"label:tier": "eu", "protocol": "http"}},
		lease.PutKey{Epoch: epoch, Key: "crawl.home-3", UID: "3f0b3c9e", Pools: []string{"crawl.shop"}, ExitIP: "203.0.113.8", Attributes: map[string]string{"label:tier": "us", "protocol": "http"}},
	)
	if _, err := s.Take(t.Context(), service.TakeRequest{Account: "nightly", Pool: "mac", Holder: "build 12"}); err != nil {
		t.Fatal(err)
	}
	return d
}

// learn keeps what later examples need.
func (d *documented) learn(resp *http.Response, body any) {
	fields, _ := body.(map[string]any)
	text := func(n string) string { s, _ := fields[n].(string); return s }
	if s := resp.Header.Get("Lease-Secret"); s != "" && text("pool") == "win" {
		d.vars["SECRET"], d.vars["LEASE"] = s, text("id")
	}
	if use := text("use"); use != "" {
		d.vars["USE"] = use
	}
	if strings.HasSuffix(resp.Request.URL.Path, "/changes") {
		d.vars["CHANGE"] = text("id")
	}
	if resp.Request.Method == http.MethodPost && strings.HasSuffix(resp.Request.URL.Path, "/tokens") {
		d.vars["TOKEN_ID"] = text("id")
	}
}

// compare says what differs between an answer and the one that is shown.
func (d *documented) compare(resp *http.Response, shown string) (wrong []string) {
	if !strings.Contains(shown, "\n\n") {
		shown += "\n" // the end of the header, which no body follows
	}
	want, err := http.ReadResponse(bufio.NewReader(strings.NewReader(shown)), nil)
	if err != nil {
		return []string{"what is shown is no answer: " + err.Error()}
	}
	if resp.StatusCode != want.StatusCode {
		raw, _ := io.ReadAll(resp.Body)
		return []string{fmt.Sprintf("status %d, shown as %d: %s", resp.StatusCode, want.StatusCode, raw)}
	}
	for name := range want.Header {
		got := resp.Header.Get(name)
		fixed := name == "Content-Type" || name == "Cache-Control" || name == "Www-Authenticate"
		if got == "" || fixed && got != want.Header.Get(name) {
			wrong = append(wrong, fmt.Sprintf("header %s is %q, shown as %q", name, got, want.Header.Get(name)))
		}
	}
	text, err := io.ReadAll(want.Body)
	if err != nil {
		return append(wrong, err.Error())
	}
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		return append(wrong, compareStream(resp.Body, text)...)
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return append(wrong, err.Error())
	}
	if len(bytes.TrimSpace(text)) == 0 {
		if len(raw) > 0 {
			wrong = append(wrong, fmt.Sprintf("a body came and none is shown: %s", raw))
		}
		return wrong
	}
	var shownBody, gotBody any
	if err := json.Unmarshal(text, &shownBody); err != nil {
		return append(wrong, "the shown body: "+err.Error())
	}
	if err := json.Unmarshal(raw, &gotBody); err != nil {
		return append(wrong, "the body: "+err.Error())
	}
	d.learn(resp, gotBody)
	return append(wrong, shape("", shownBody, gotBody)...)
}

// compareStream compares as many lines of a stream as are shown.
func compareStream(got io.Reader, shown []byte) (wrong []string) {
	lines := bufio.NewScanner(got)
	for want := range strings.Lines(string(shown)) {
		want = strings.TrimSuffix(want, "\n")
		if !lines.Scan() {
			return append(wrong, "the stream ended before "+want)
		}
		name, value, _ := strings.Cut(want, ": ")
		gotName, gotValue, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case name != gotName || name == "event" && value != gotValue:
			wrong = append(wrong, fmt.Sprintf("the line %q came, shown as %q", lines.Text(), want))
		case name == "data":
			var s, g any
			if json.Unmarshal([]byte(value), &s) != nil || json.Unmarshal([]byte(gotValue), &g) != nil {
				wrong = append(wrong, "no JSON: "+lines.Text())
				continue
			}
			wrong = append(wrong, shape("data", s, g)...)
		}
	}
	return wrong
}

// Every example of the page does what the page says, on a real server over a
// real database.
func TestExamplesOfThePage(t *testing.T) {
	d := serveDocumented(t)
	all := examples(t, page(t))
	for _, e := range all {
		if e.answer == "" {
			t.Errorf("line %d: no answer is shown", e.line)
			continue
		}
		d.before(t, e)
		args, err := words(e.command, d.vars)
		if err != nil {
			t.Errorf("line %d: %v", e.line, err)
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		req, err := curl(ctx, args)
		if err != nil {
			t.Errorf("line %d: %v", e.line, err)
			cancel()
			continue
		}
		resp, err := (&http.Client{Transport: d.http.Transport}).Do(req)
		if err != nil {
			t.Errorf("line %d: %v", e.line, err)
			cancel()
			continue
		}
		for _, wrong := range d.compare(resp, e.answer) {
			t.Errorf("line %d: %s", e.line, wrong)
		}
		resp.Body.Close()
		cancel()
	}
	if len(all) < 20 {
		t.Errorf("%d examples were found: the search is broken", len(all))
	}
}

// before brings about what an example supposes.
func (d *documented) before(t *testing.T, e example) {
	t.Helper()
	if !strings.Contains(e.command, "/waiters") {
		return
	}
	// "build 13" begins to wait for the pool mac, and gets its key later.
	go func() {
		_, err := d.service.Take(context.WithoutCancel(t.Context()), service.TakeRequest{
			Account: "nightly", Pool: "mac", Holder: "build 13", Wait: 30 * time.Second, IdempotencyKey: "build 13",
		})
		if err != nil {
			t.Errorf("build 13 waited in vain: %v", err)
		}
	}()
	for range 1000 {
		if p, err := d.service.Pool(t.Context(), "mac"); err == nil && p.Waiting == 1 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("build 13 never waits")
}

// Each route has a part of the page, and each field of a body or an answer, and
// each parameter, is named there.
func TestPageIsWhole(t *testing.T) {
	d := serve(t, whole)
	text := page(t)
	for _, op := range operations(t, d) {
		if heading := fmt.Sprintf("### `%s %s`\n", op.method, op.path); !strings.Contains(text, heading) {
			t.Errorf("docs/api.md has no part %q", strings.TrimSpace(heading))
		}
	}
	for _, m := range regexp.MustCompile("(?m)^### `([A-Z]+) (/api/[^`]+)`$").FindAllStringSubmatch(text, -1) {
		if !slices.ContainsFunc(operations(t, d), func(op described) bool { return op.method == m[1] && op.path == m[2] }) {
			t.Errorf("docs/api.md describes %s %s, which does not exist", m[1], m[2])
		}
	}
	resp, err := d.http.Get(d.url + "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Components.Schemas) < 20 {
		t.Fatal("no schemas")
	}
	for name, schema := range doc.Components.Schemas {
		for field := range schema.Properties {
			if !regexp.MustCompile("[`\"]" + regexp.QuoteMeta(field) + "[`\"]").MatchString(text) {
				t.Errorf("docs/api.md does not name the field %s of %s", field, name)
			}
		}
	}
}

// controllers are codes of operations that controllers alone send; no client
// sees them.
func controllers() map[string]bool {
	return map[string]bool{"epoch": true, "uid": true, "pool_used": true}
}

// codesOf finds the codes of errors that a package makes: what it gives to
// WithCode, and its constants whose names begin with code.
func codesOf(t *testing.T, dir string) (codes []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no files, %v", dir, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		literal := func(e ast.Expr) {
			if l, ok := e.(*ast.BasicLit); ok && l.Kind == gotoken.STRING {
				s, err := strconv.Unquote(l.Value)
				if err != nil {
					t.Fatal(err)
				}
				codes = append(codes, s)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "WithCode" {
					literal(n.Args[1])
				}
			case *ast.ValueSpec:
				for i, id := range n.Names {
					if strings.HasPrefix(strings.ToLower(id.Name), "code") && i < len(n.Values) {
						literal(n.Values[i])
					}
				}
			}
			return true
		})
	}
	return codes
}

// Every code that an error may carry to a client is in the table, with what to do.
func TestPageHasEveryType(t *testing.T) {
	text := page(t)
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+):([a-z_]+)` \\| (.+) \\|$").FindAllStringSubmatch(text, -1) {
		rows[m[2]] = true
		if len(m[3]) < 10 {
			t.Errorf("%s:%s: what is to be done?", m[1], m[2])
		}
	}
	var codes []string
	for _, dir := range []string{
		"../../core/lease", "../../core/target", "../../core/token", "../../core/action", "../service", "../token", ".", "../../platform/sqldb",
	} {
		codes = append(codes, codesOf(t, dir)...)
	}
	for _, end := range []lease.End{lease.Released, lease.Expired, lease.Forced, lease.Replaced, lease.Removed, lease.Unclaimed} {
		codes = append(codes, "lease_"+string(end))
	}
	// By the place of what is wrong in a request (codeOfField), and by httpd.
	codes = append(codes, "body", "field", "too_large")
	if len(codes) < 40 {
		t.Errorf("%d codes were found: the search is broken", len(codes))
	}
	known := map[string]bool{}
	for _, c := range codes {
		known[c] = true
		if !rows[c] && !controllers()[c] {
			t.Errorf("docs/api.md does not say what to do about an error of the code %s", c)
		}
	}
	for c := range rows {
		if !known[c] {
			t.Errorf("docs/api.md has the code %s, which no error has", c)
		}
	}
	for _, class := range []string{"invalid", "denied", "not_found", "conflict", "quota", "transient", "unavailable", "timeout", "permanent", "unsupported"} {
		if !strings.Contains(text, "`"+class+"`") {
			t.Errorf("docs/api.md does not name the class %s", class)
		}
	}
}
