package config_test

import (
	"fmt"
	"strings"

	"fleetdesk/internal/qasight/config"
)

type goodSample struct{ reason, text string }

// whole has every field.
const whole = `project: shop-tests
server: https://qasight.example:8443
pools:
  win-vms:
    items: [qa-win-01, qa-win-02]
    lease_ttl: 30m
    cooldown: 1m30s
    on_check: ./vm-check.sh
    on_reset: ./vm-reset.sh
    hook_timeout: 3m
    provider:
      list: ./vms.sh list
      create: ./vms.sh create
      destroy: ./vms.sh destroy
      allow: [create, destroy]
      name_prefix: qa-
      max_items: 8
      timeout: 5m
  db:
    items:
      - "db-1"
      - 'db-2'   # the slow one
      # not in use: db-4
      - db-3
stages:
  ui: {command: npx playwright test, pool: win-vms, workers: 2}
  unit:
    command: |
      set -e
      	make unit
    pool: db
`

const least = "project: shop\npools: {a: {items: []}}\n"

func good() map[string]goodSample {
	in := func(pool string) string { return "project: shop\npools:\n  a:\n    " + pool + "\n" }
	return map[string]goodSample{
		"whole":             {"every field", whole},
		"least":             {"what must be there", least},
		"template":          {"what init writes", string(config.Template("shop"))},
		"open template":     {"what becomes of it", uncommented()},
		"one document":      {"a document may be marked as one", "---\n" + least + "...\n"},
		"empty list":        {"the keys may come later", in("items: []")},
		"numbers as names":  {"what YAML would make of them does not matter", in("items: [01, 1e3, yes, true, 0x10, 2026-01-01, 1.5, 1_000, 0b10, 0o7]")},
		"quoted null":       {"quotes make it a name", in(`items: ["null", 'x']`)},
		"number as project": {"so may a project be called", "project: 2024\npools: {1: {items: [1]}}\n"},
		"local http":        {"nothing leaves the machine", "server: http://127.0.0.1:8080\n" + least},
		"local name":        {"nor here", "server: http://localhost:8080\n" + least},
		"local v6":          {"nor here", "server: http://[::1]:8080/\n" + least},
		"upper case URL":    {"schemes have no case", "server: HTTPS://desk.example\n" + least},
		"quoted times":      {"quotes change nothing", in(`items: []` + "\n    lease_ttl: \"1h30m\"\n    cooldown: '0s'")},
		"longest times":     {"the bounds themselves", in("items: []\n    lease_ttl: 24h\n    cooldown: 720h\n    hook_timeout: 24h")},
		"shortest times":    {"and the lower ones", in("items: []\n    lease_ttl: 5s\n    cooldown: 0s\n    hook_timeout: 1s")},
		"times in parts":    {"hooks may be timed finely", in("items: []\n    hook_timeout: 1500ms\n    lease_ttl: 7.5m")},
		"no verbs":          {"sight without hands", in("items: []\n    provider: {list: ./vms.sh}")},
		"empty allow":       {"none is allowed", in("items: []\n    provider: {list: ./vms.sh, allow: [], create: c, destroy: d}")},
		"destroy alone":     {"destroying needs no bound on the number", in("items: []\n    provider: {list: l, destroy: d, name_prefix: qa-, allow: [destroy]}")},
		"folded command":    {"a long command in several lines", in("items: []\n    on_check: >-\n      ./check\n      --fast")},
		"quoted switch":     {"quotes make it a command", in(`items: []` + "\n    on_check: \"true\"")},
		"shell text":        {"it goes to the shell as it is", in("items: []\n    on_check: test -n \"$QASIGHT_KEY\" && ! grep '^x' <<< \"&a *b\" # why")},
		"many workers":      {"more than keys makes them wait for each other", least + "stages: {s: {command: x, pool: a, workers: 256}}\n"},
		"no stages":         {"an empty mapping is none", least + "stages: {}\n"},
		"overlap":           {"the verbs refuse then, not the file", "project: p\npools:\n  a: {items: [], provider: {list: l, name_prefix: qa-}}\n  b: {items: [], provider: {list: l, name_prefix: qa-win-}}\n"},
		"JSON":              {"it is YAML too", `{"project":"p","pools":{"a":{"items":["x"]}}}`},
		"blanks at ends":    {"nobody sees them", "project: p  \npools: \n  a: \t\n    items: \n    - x \n    - y\t\n    on_check: ./a b  \n"},
		"key in two pools":  {"that is for the desk to refuse or not", "project: p\npools: {a: {items: [x]}, b: {items: [x]}}\n"},
		"longest names":     {"128 bytes are a name", "project: " + strings.Repeat("p", 128) + "\npools: {" + strings.Repeat("q", 128) + ": {items: [" + strings.Repeat("x", 128) + "]}}\n"},
	}
}

// uncommented is the template with all of its fields in force.
func uncommented() string {
	lines := strings.Split(string(config.Template("shop")), "\n")
	for i, l := range lines {
		if m := commented.FindStringSubmatch(l); m != nil {
			lines[i] = m[1] + m[2]
		}
	}
	return strings.Join(lines, "\n")
}

type badSample struct {
	reason, text, want string
	// schema is whether the JSON schema must refuse it too.
	schema bool
}

func bad() map[string]badSample {
	// item is a pool whose list is one item in brackets, at 4:13.
	item := func(s string) string { return "project: shop\npools:\n  a:\n    items: [" + s + "]\n" }
	// with is a pool with one more line, at 5:5.
	with := func(s string) string { return "project: shop\npools:\n  a:\n    items: [x]\n    " + s + "\n" }
	// provider is a pool whose provider has these fields, the first at 5:16.
	provider := func(s string) string { return with("provider: {" + s + "}") }
	// top has one more line at the top, at 1:1.
	top := func(s string) string { return s + "\n" + least }
	const chars = ": use letters, digits, '.', '_' and '-' only"
	long := strings.Repeat("x", 300)
	cut := `"` + strings.Repeat("x", 40) + `"…`

	return map[string]badSample{
		// The file.
		"empty":            {"nothing is in it", "", "1:1: the file is empty: `qasight init` writes one to begin with", false},
		"comments only":    {"nothing is in it", "# a\n\n# b\n", "1:1: the file is empty: `qasight init` writes one to begin with", false},
		"null":             {"nothing is in it", "---\n~\n", "1:1: the file is empty: `qasight init` writes one to begin with", false},
		"too big":          {"no such file is that long", least + strings.Repeat("#", config.MaxSize), "1:1: the file has more than 4194304 bytes: split the project", false},
		"not UTF-8":        {"another encoding would make other names", "project: shop\npools: {\xe9: {}}\n", "2:9: byte 0xe9 is not UTF-8: save the file as UTF-8", false},
		"UTF-16":           {"so do some editors save", "\xff\xfep\x00", "1:1: byte 0xff is not UTF-8: save the file as UTF-8", false},
		"NUL":              {"it ends a text for half of all programs", "project: é\x00\n", "1:11: there is a control character (U+0000): delete it", false},
		"escape":           {"a terminal would obey it", "project: shop\n# \x1b[2J\n", "2:3: there is a control character (U+001B): delete it", false},
		"carriage return":  {"a line break to some, not to others", "project: shop\rpools: {}\n", "1:14: there is a control character (U+000D): delete it", false},
		"list":             {"fields have names", "- a\n- b\n", "1:1: the file is a mapping with fields such as project and pools, not a list: `qasight init` shows one", true},
		"text":             {"fields have names", "\n  hello\n", "2:3: the file is a mapping with fields such as project and pools, not a text: `qasight init` shows one", true},
		"two documents":    {"the second would be ignored in silence", least + "---\nproject: b\n", "3:1: a second YAML document begins: keep everything in one", false},
		"two after an end": {"the same with an end mark", least + "...\n---\nx: y\n", "4:1: a second YAML document begins: keep everything in one", false},
		"directive":        {"there is no need", "%YAML 1.1\n---\n" + least, "1:1: directives (%) are not possible here: delete the line", false},

		// YAML.
		"tab":             {"editors insert it unasked", "project: shop\npools:\n\ta:\n", "3:1: a tab stands where only spaces can: indent with spaces", false},
		"tab after space": {"it looks like indentation", "project: shop\npools:\n  a:\n  \titems: []\n", "4:3: a tab stands where only spaces can: indent with spaces", false},
		"open quote":      {"the rest of the file is inside", "project: \"shop\npools: {}\n", `1:10: a text in double quotes has no end: add the closing "`, false},
		"open quote 2":    {"the rest of the file is inside", "project: 'shop\npools: {}\n", "1:10: a text in single quotes has no end: add the closing '", false},
		"open bracket":    {"the rest of the file is inside", "project: shop\npools:\n  a:\n    items: [x, y\n", "4:12: a list in brackets has no end: add the closing ]", false},
		"open brace":      {"the rest of the file is inside", "project: shop\npools: {a: {items: [x]}\n", "2:8: a mapping in braces has no end: add the closing }", false},
		"colon in value":  {"a likely mistake in commands", with("on_check: ./a.sh: b"), "5:15: a colon stands where none can: quote the value that holds it, or give the line the indentation of its neighbours", false},
		"bad indentation": {"it belongs to nothing", "project: shop\npools:\n  a:\n    items: [x]\n   on_check: x\n", "5:4: this does not belong here: give it the indentation of its neighbours, and quote values with special characters", false},
		"reserved":        {"YAML keeps it for itself", with("on_check: @x"), "5:15: '@' is a reserved character: quote the value", false},
		"block header":    {"errors stay short", with("on_check: |" + long), "5:15: this is not YAML (invalid header option: \"" + long[:76] + "…): look at indentation, quotes and brackets here", false},
		"anchor":          {"nothing may look smaller than it is", with("on_check: &x ./a"), "5:15: anchors (&) are not possible here: write the value out; a value that begins with & needs quotes", false},
		"laughs": {
			"ten lines that become a billion", "a: &a [x,x]\nb: &b [*a,*a]\n",
			"1:4: anchors (&) are not possible here: write the value out; a value that begins with & needs quotes\n" +
				"qasight.yaml:2:4: anchors (&) are not possible here: write the value out; a value that begins with & needs quotes\n" +
				"qasight.yaml:2:8: aliases (*) are not possible here: write the value out; a value that begins with * needs quotes\n" +
				"qasight.yaml:2:11: aliases (*) are not possible here: write the value out; a value that begins with * needs quotes", false,
		},
		"merge":          {"fields would come from elsewhere", with("<<: {cooldown: 1s}"), "5:5: merge keys (<<) are not possible here: write the fields out", false},
		"tag":            {"a type that nobody asked for", with("on_check: !!binary x"), "5:15: tags (!) are not possible here: delete it; a value that begins with ! needs quotes", false},
		"key mark":       {"a mapping as a name", "? project\n: shop\n", "1:1: keys marked by ? are not possible here: write NAME: VALUE", false},
		"deep":           {"the parser calls itself", item(strings.Repeat("[", 100_000)), "4:44: this is nested deeper than 32 levels: the format needs six", false},
		"deep in dashes": {"the parser calls itself", "a:\n" + strings.Repeat("- ", 100_000) + "x\n", "2:65: this is nested deeper than 32 levels: the format needs six", false},
		"many fields":    {"the parser takes the square of their time", strings.Repeat("a: b\n", 100_000), "10001:2: there are more than 10000 fields, which no such file has: look for what repeats itself", false},

		"tab in command": {"two words would become one", with("on_check: ./a\tb"), "5:15: on_check: a tab stands in a text without quotes: use blanks, or quote the text", false},
		"tab in key":     {"two words would become one", item("a\tb"), "4:13: items: a tab stands in a text without quotes: use blanks, or quote the text", false},
		"tab in name":    {"two words would become one", "project: p\npools: {a\tb: {items: []}}\n", "2:9: name of a pool: a tab stands in a text without quotes: use blanks, or quote the text", false},
		"comma first":    {"YAML keeps it for itself", with("on_check: ,x"), "5:15: on_check: a text without quotes begins with ',': quote the text", false},
		"glued colon":    {"to YAML it is one text", provider("list:l"), "5:20: a blank is missing behind this colon: add it, or quote the text if the colon is part of it", false},
		"glued field":    {"it would be read as a line of its own", "project: p\npools:\n  a:\n    items: [x]on_check: y\n", "4:15: nothing can stand behind ]: begin a new line, or quote the whole value", false},
		"glued tag":      {"it would be overlooked at the end", "project: p\npools: {a: {items: []}}!x", "2:24: nothing can stand behind }: begin a new line, or quote the whole value", false},
		"tag at the end": {"it would be overlooked there", least + "!x", "3:1: tags (!) are not possible here: delete it; a value that begins with ! needs quotes", false},
		"shell test":     {"YAML takes it for a list", with("on_check: [ -f x ]"), "5:15: on_check is a command, not a list: quote it", false},

		// Fields.
		"no project":              {"it names the lease database", "pools: {a: {items: []}}\n", `1:1: the file has no project: add "project:" with a name`, true},
		"no pools":                {"there is nothing to do", "project: shop\n", `1:1: the file has no pools: add "pools:"`, true},
		"empty pools":             {"there is nothing to do", "project: shop\npools: {}\n", "2:8: pools is empty: there must be one at least", true},
		"pools of nothing":        {"the same", "project: shop\npools:\n", "2:1: pools has no value: it needs a mapping of names to fields", true},
		"pools as list":           {"names are keys here", "project: shop\npools: [a]\n", "2:8: pools is a mapping of names to fields, not a list", true},
		"unknown at top":          {"a typo must not pass in silence", top("sever: https://x.example"), `1:1: unknown field "sever" in the file: did you mean server?`, true},
		"unknown in pool":         {"nor here", with("leaseTTL: 3m"), `5:5: unknown field "leaseTTL" in pool "a": did you mean lease_ttl?`, true},
		"unknown, short":          {"half of the name is meant", with("ttl: 3m"), `5:5: unknown field "ttl" in pool "a": did you mean lease_ttl?`, true},
		"unknown, swapped":        {"letters change places", with("no_check: x"), `5:5: unknown field "no_check" in pool "a": did you mean on_check?`, true},
		"unknown elsewhere":       {"it is one of another section", with("max_items: 3"), `5:5: unknown field "max_items" in pool "a": did you mean items? max_items is a field of a provider`, true},
		"unknown, elsewhere only": {"it is one of another section", with("command: x"), `5:5: unknown field "command" in pool "a": command is a field of a stage`, true},
		"unknown at all":          {"nothing reads alike", with("zoo: 3"), `5:5: unknown field "zoo" in pool "a": the fields of a pool are items, lease_ttl, cooldown, on_check, on_reset, hook_timeout, provider`, true},
		"unknown, long":           {"errors stay short", with(long + ": 3"), `5:5: unknown field ` + cut + ` in pool "a": the fields of a pool are items, lease_ttl, cooldown, on_check, on_reset, hook_timeout, provider`, true},
		"unknown in provider":     {"provider commands more than anything", provider("list: l, creat: c"), `5:25: unknown field "creat" in the provider of pool "a": did you mean create?`, true},
		"unknown in stage":        {"nor here", least + "stages: {s: {command: x, pool: a, worker: 2}}\n", `3:35: unknown field "worker" in stage "s": did you mean workers?`, true},
		"no check of providers":   {"one question, one command", provider("list: l, check: c"), `5:25: unknown field "check" in the provider of pool "a": the fields of a provider are list, create, destroy, allow, name_prefix, max_items, timeout`, true},
		"twice at top":            {"one of the two would win by chance", top("project: a"), "2:1: project is there twice in the file: it is at 1:1 already: keep one of them", false},
		"twice in pool":           {"one of the two would win by chance", with("items: [y]"), `5:5: items is there twice in pool "a": it is at 4:5 already: keep one of them`, false},
		"twice, quoted":           {"quotes change nothing", with(`"items": [y]`), `5:5: items is there twice in pool "a": it is at 4:5 already: keep one of them`, false},
		"twice in provider":       {"one of the two would win by chance", provider("list: a, list: b"), `5:25: list is there twice in the provider of pool "a": it is at 5:16 already: keep one of them`, false},
		"twice in stage":          {"one of the two would win by chance", least + "stages: {s: {command: x, pool: a, pool: a}}\n", `3:35: pool is there twice in stage "s": it is at 3:26 already: keep one of them`, false},
		"pool twice":              {"one of the two would win by chance", "project: p\npools:\n  a: {items: []}\n  b: {items: []}\n  a: {items: []}\n", `5:3: pool "a" is there twice: it is at 3:3 already: give one of them another name`, false},
		"stage twice":             {"one of the two would win by chance", least + "stages:\n  s: {command: x, pool: a}\n  s: {command: x, pool: a}\n", `5:3: stage "s" is there twice: it is at 4:3 already: give one of them another name`, false},
		"pool of nothing":         {"it has no items", "project: p\npools:\n  a:\n", `3:3: pool "a" is empty: give it the field items`, true},
		"pool as list":            {"a likely mistake", "project: p\npools:\n  a: [x, y]\n", `3:6: pool "a" is a mapping with fields such as items, not a list`, true},
		"field as pool":           {"it belongs to the pool above", "project: p\npools:\n  a:\n    items: []\n  lease_ttl: 30m\n", `5:14: pool "lease_ttl" is a mapping with fields such as items, not a text: is it indented as the pool's fields?`, true},
		"empty field as pool":     {"it belongs to the pool above", "project: p\npools:\n  a:\n    items: []\n  cooldown:\n", `5:3: pool "cooldown" is empty: give it the field items: is it indented as the pool's fields?`, true},
		"provider as pool":        {"it belongs to the pool above", "project: p\npools:\n  a: {items: []}\n  provider: {}\n", `4:3: pool "provider" has no items: add "items:" with a list of keys; [] is an empty one: is it indented as the pool's fields?`, true},
		"field as stage":          {"it belongs to the stage above", least + "stages:\n  s: {command: x, pool: a}\n  workers: 2\n", `5:12: stage "workers" is a mapping with fields such as command, not a number: is it indented as the stage's fields?`, true},
		"pool without name":       {"YAML takes this for nothing", "project: p\npools: {~: {items: []}}\n", `2:9: a pool has no name: give it one, or quote "~" if that is its name`, false},
		"bad pool name":           {"it stands in paths and commands", "project: p\npools: {a/b: {items: []}}\n", `2:9: name of a pool: "a/b" has the character '/'` + chars, true},
		"bad stage name":          {"the same", least + "stages: {a b: {command: x, pool: a}}\n", `3:10: name of a stage: "a b" has the character ' '` + chars, true},
		"project path":            {"it becomes the name of a folder", "project: ../x\npools: {a: {items: []}}\n", `1:10: project: "../x" has the character '/'` + chars, true},
		"project dots":            {"it becomes the name of a folder", "project: ..\npools: {a: {items: []}}\n", `1:10: project: ".." begins with '.': begin it with a letter or digit`, true},
		"project as list":         {"it is a name", "project: [a]\npools: {a: {items: []}}\n", "1:10: project is a name, not a list", true},
		"project null":            {"it has none", "project: null\npools: {a: {items: []}}\n", "1:1: project has no value: it needs a name", true},
		"empty project":           {"it has none", "project: ''\npools: {a: {items: []}}\n", "1:10: project: the name is empty: give it one", true},

		// Keys.
		"no items":          {"forgotten, or none? say so", "project: p\npools: {a: {cooldown: 1s}}\n", `2:9: pool "a" has no items: add "items:" with a list of keys; [] is an empty one`, true},
		"items of nothing":  {"the same", "project: p\npools: {a: {items: }}\n", "2:13: items has no value: write [] for an empty list", true},
		"items as text":     {"a likely mistake", "project: p\npools: {a: {items: x}}\n", "2:20: items is a list of names, not a text: write items: [x]", true},
		"items as mapping":  {"a likely mistake", "project: p\npools: {a: {items: {x: y}}}\n", "2:20: items is a list of names, not a mapping", true},
		"command as key":    {"it must never reach a shell", item("$(touch x)"), `4:13: items: "$(touch x)" has the character '$'` + chars, true},
		"backticks as key":  {"it must never reach a shell", item("\"`id`\""), "4:13: items: \"`id`\" has the character '`'" + chars, true},
		"blank in key":      {"a likely mistake", item("a b"), `4:13: items: "a b" has the character ' '` + chars, true},
		"option as key":     {"commands would take it for a switch", item("-rf"), `4:13: items: "-rf" begins with '-': begin it with a letter or digit`, true},
		"letter beyond":     {"it looks the same in two spellings", item("é"), `4:13: items: "é" has the character 'é'` + chars, true},
		"long key":          {"databases and paths have bounds", item(long), "4:13: items: " + cut + " has 300 bytes: a name has at most 128: shorten it", true},
		"one byte too long": {"the bound itself", item(long[:129]), "4:13: items: " + cut + " has 129 bytes: a name has at most 128: shorten it", true},
		"newline in key":    {"it forges lines", item(`"a\nb"`), `4:13: items: "a\nb" has the character '\n'` + chars, true},
		"newline at end":    {"a pattern with $ would take it", item(`"a\n"`), `4:13: items: "a\n" has the character '\n'` + chars, true},
		"two lines":         {"YAML makes one text of them", "project: p\npools:\n  a:\n    items:\n      - x\n        y\n", `5:9: items: "x y" has the character ' '` + chars, true},
		"NUL in key":        {"it ends a text for half of all programs", item(`"a\0"`), `4:13: items: "a\x00" has the character '\x00'` + chars, true},
		"null key":          {"YAML takes this for nothing", item("null"), `4:13: items has an empty item: delete it, or quote it if "null" is its name`, true},
		"tilde key":         {"YAML takes this for nothing", item("~"), `4:13: items has an empty item: delete it, or quote it if "~" is its name`, true},
		"empty key":         {"it names nothing", item(`""`), "4:13: items: the name is empty: give it one", true},
		"empty item":        {"a dash too many", "project: p\npools:\n  a:\n    items:\n      -\n      # why\n      - b\n", "5:7: this item of a list is empty: delete it", true},
		"list as key":       {"a list too many", item("[x]"), "4:13: an item of items is a name, not a list", true},
		"mapping as key":    {"a colon too many", item("{x: y}"), "4:13: an item of items is a name, not a mapping", true},
		"star":              {"YAML takes it for an alias", item("*"), "4:13: aliases (*) are not possible here: write the value out; a value that begins with * needs quotes", false},
		"key twice":         {"two would hold the same thing", "project: p\npools:\n  a:\n    items:\n      - x\n      - y\n      - x\n", `7:9: "x" is in items of pool "a" twice: it is at 5:9 already: delete one of them`, true},
		"key twice, quoted": {"quotes change nothing", item(`x, "x"`), `4:16: "x" is in items of pool "a" twice: it is at 4:13 already: delete one of them`, true},
		"number twice":      {"the text counts", item("01, 1, 01"), `4:20: "01" is in items of pool "a" twice: it is at 4:13 already: delete one of them`, true},

		// Times and numbers.
		"bare number":      {"of what?", with("lease_ttl: 30"), "5:16: lease_ttl: 30 of what? write 30s or 30m", true},
		"quoted number":    {"of what?", with("lease_ttl: '30'"), "5:16: lease_ttl: 30 of what? write 30s or 30m", true},
		"bare fraction":    {"of what?", with("hook_timeout: 1.5"), "5:19: hook_timeout: 1.5 of what? write 1.5s or 1.5m", true},
		"bare zero":        {"of what?", with("cooldown: 0"), "5:15: cooldown: 0 of what? write 0s", true},
		"days":             {"the unit does not exist", with("cooldown: 2d"), "5:15: cooldown: there is no unit for days: write 48h", true},
		"words":            {"no time", with("cooldown: five minutes"), `5:15: cooldown: "five minutes" is no time: write one such as 90s, 30m or 1h30m`, true},
		"negative":         {"time goes on", with("cooldown: -1s"), `5:15: cooldown: "-1s" is negative: write 0s to 720h`, true},
		"plus":             {"the schema has no signs", with("cooldown: +1s"), `5:15: cooldown: "+1s" is no time: write one such as 90s, 30m or 1h30m`, true},
		"short lease":      {"below what can be renewed", with("lease_ttl: 4s"), "5:16: lease_ttl: 4s is too short: write 5s to 24h", false},
		"long lease":       {"beyond a day", with("lease_ttl: 24h1s"), "5:16: lease_ttl: 24h1s is too long: write 5s to 24h", false},
		"parts of seconds": {"leases are told in seconds", with("lease_ttl: 5500ms"), "5:16: lease_ttl: 5500ms is not whole seconds: write 5s or 6s", false},
		"parts of rest":    {"rests too", with("cooldown: 0.5s"), "5:15: cooldown: 0.5s is not whole seconds: write 0s or 1s", false},
		"long rest":        {"beyond a month", with("cooldown: 721h"), "5:15: cooldown: 721h is too long: write 0s to 720h", false},
		"short hook":       {"nothing starts that fast", with("hook_timeout: 999ms"), "5:19: hook_timeout: 999ms is too short: write 1s to 24h", false},
		"long hook":        {"beyond a day", with("hook_timeout: 25h"), "5:19: hook_timeout: 25h is too long: write 1s to 24h", false},
		"overflow":         {"beyond all numbers", with("hook_timeout: 99999999999999999999h"), "5:19: hook_timeout: 99999999999999999999h is too long: write 1s to 24h", false},
		"time as list":     {"one is enough", with("lease_ttl: [30m]"), "5:16: lease_ttl is a time such as 30m, not a list", true},
		"time of nothing":  {"leave it out instead", with("lease_ttl:"), "5:5: lease_ttl has no value: give it a time such as 30m, or leave the line out", true},
		"no workers":       {"nobody would work", least + "stages: {s: {command: x, pool: a, workers: 0}}\n", "3:44: workers: 0 is too little: write 1 to 256", true},
		"many workers":     {"one machine has its limits", least + "stages: {s: {command: x, pool: a, workers: 257}}\n", "3:44: workers: 257 is too much: write 1 to 256", true},
		"endless workers":  {"beyond all numbers", least + "stages: {s: {command: x, pool: a, workers: 99999999999999999999}}\n", "3:44: workers: 99999999999999999999 is too much: write 1 to 256", true},
		"half a worker":    {"people come whole", least + "stages: {s: {command: x, pool: a, workers: 1.5}}\n", `3:44: workers: "1.5" is no plain whole number: write 1 to 256`, true},
		"octal workers":    {"eight or ten?", least + "stages: {s: {command: x, pool: a, workers: 010}}\n", `3:44: workers: "010" is no plain whole number: write 1 to 256`, false},
		"quoted workers":   {"a text is no number", least + "stages: {s: {command: x, pool: a, workers: '2'}}\n", `3:44: workers: "2" is a text, not a number: write it without quotes`, true},

		// Commands.
		"empty command":      {"none, or forgotten?", with("on_check: ''"), "5:15: on_check: the command is empty: write one, or leave the field out", true},
		"blank command":      {"the shell would say yes", with("on_check: '  '"), "5:15: on_check: the command is empty: write one, or leave the field out", true},
		"NUL in command":     {"it would be cut there", with(`on_reset: "a\0b"`), "5:15: on_reset: the command holds a NUL character, which no shell takes: delete it", false},
		"false":              {"it was meant as a switch", with("on_check: false"), `5:15: on_check: false is no command but a switch, and there is none: leave the field out, or write "false" in quotes for the program of that name`, true},
		"off":                {"to YAML of old it is one", with("on_check: off"), `5:15: on_check: off reads as a switch, and there is none: leave the field out, or write "off" in quotes for the program of that name`, false},
		"number":             {"no command", with("on_check: 5"), "5:15: on_check: 5 is a number, not a command: write one, or quote it", true},
		"command as mapping": {"braces are for shells too", with("on_check: {a: b}"), "5:15: on_check is a command, not a mapping: quote it", true},
		"hook of nothing":    {"leave it out instead", with("on_check:"), "5:5: on_check has no value: give it a command, or leave the line out", true},
		"long command":       {"the system takes no such argument", with("on_check: " + strings.Repeat("x", 65537)), "5:15: on_check: the command has 65537 bytes: at most 65536 are possible: put it into a script and call that", true},

		// The server.
		"plain http":          {"the token would be read on the way", top("server: http://desk.example:8080"), `1:9: server: http would send your token unencrypted to "desk.example": use https (http is for localhost, 127.0.0.1 and [::1])`, false},
		"like loopback":       {"a name is not an address", top("server: http://127.0.0.1.example"), `1:9: server: http would send your token unencrypted to "127.0.0.1.example": use https (http is for localhost, 127.0.0.1 and [::1])`, false},
		"no scheme":           {"a likely mistake", top("server: desk.example"), "1:9: server: the URL must begin with https:// (or http:// on this machine): write it as https://HOST:PORT", true},
		"other scheme":        {"nobody speaks it", top("server: ftp://desk.example"), "1:9: server: the URL must begin with https:// (or http:// on this machine): write it as https://HOST:PORT", true},
		"no host":             {"nobody is there", top("server: https:///x"), "1:9: server: the URL has no host: write it as https://HOST:PORT", true},
		"user":                {"a password in a file for all", top("server: https://ann:secret@desk.example"), "1:9: server: the URL holds a user: leave it out; the token says who you are", true},
		"query":               {"it would be lost", top("server: https://desk.example/?a=b"), "1:9: server: the URL holds a query or fragment: write it as https://HOST:PORT", true},
		"fragment":            {"it would be lost", top("server: https://desk.example/#a"), "1:9: server: the URL holds a query or fragment: write it as https://HOST:PORT", true},
		"path":                {"nobody listens below one", top("server: https://desk.example/qa"), "1:9: server: the URL has a path: write it as https://HOST:PORT", true},
		"two slashes":         {"that is a path too", top("server: https://desk.example//"), "1:9: server: the URL has a path: write it as https://HOST:PORT", true},
		"bad port":            {"no such port", top("server: https://desk.example:99999"), `1:9: server: "99999" is no port: use 1 to 65535`, false},
		"empty port":          {"forgotten", top("server: 'https://desk.example:'"), `1:9: server: "" is no port: use 1 to 65535`, false},
		"secret in a bad URL": {"the error must not tell it", top(`server: "https://ann:secret@desk example"`), "1:9: server: this is no URL: write it as https://HOST:PORT", true},

		// Providers and stages.
		"no list":           {"nothing is done unseen", provider("create: c"), `5:5: the provider of pool "a" has no list: add "list:" with the command to run`, true},
		"no provider":       {"leave it out instead", with("provider:"), "5:5: provider has no value: give it a mapping of fields, or leave the line out", true},
		"provider text":     {"a likely mistake", with("provider: ./vms.sh"), `5:15: the provider of pool "a" is a mapping with fields such as list, not a text`, true},
		"unknown verb":      {"there are two", provider("list: l, allow: [creat]"), `5:33: allow: there is no verb "creat": did you mean create? there are create and destroy`, true},
		"verb twice":        {"a likely mistake", provider("list: l, destroy: d, name_prefix: q, allow: [destroy, destroy]"), `5:70: "destroy" is in allow of the provider of pool "a" twice: it is at 5:61 already: delete one of them`, true},
		"verb alone":        {"a likely mistake", provider("list: l, allow: destroy"), "5:32: allow is a list of verbs, not a text: write allow: [destroy]", true},
		"no command":        {"nothing to run", provider("list: l, name_prefix: q, allow: [destroy]"), "5:49: destroy is allowed, and the provider has no destroy: add it, or take destroy out of allow", true},
		"no prefix":         {"any machine could be destroyed", provider("list: l, destroy: d, allow: [destroy]"), "5:45: destroy is allowed, and the provider has no name_prefix: add it, or take destroy out of allow", true},
		"no bound":          {"machines without end", provider("list: l, create: c, name_prefix: q, allow: [create]"), "5:60: create is allowed, and the provider has no max_items: add it, or take create out of allow", true},
		"empty prefix":      {"every machine has it", provider("list: l, name_prefix: ''"), "5:38: name_prefix: it is empty, and every name begins with that: say what your machines' names begin with, such as qa-", true},
		"bad prefix":        {"no key begins so", provider("list: l, name_prefix: -qa"), `5:38: name_prefix: "-qa" begins with '-': begin it with a letter or digit`, true},
		"pattern":           {"it is no pattern", provider("list: l, name_prefix: qa-*"), `5:38: name_prefix: "qa-*" has the character '*'` + chars, true},
		"long prefix":       {"half of a name at most", provider("list: l, name_prefix: " + long[:65]), "5:38: name_prefix: " + cut + " has 65 bytes: a prefix has at most 64: shorten it", true},
		"no machines":       {"a bound that forbids all", provider("list: l, max_items: 0"), "5:36: max_items: 0 is too little: write 1 to 10000", true},
		"too many":          {"no pool has that many", provider("list: l, max_items: 10001"), "5:36: max_items: 10001 is too much: write 1 to 10000", true},
		"short timeout":     {"nothing starts that fast", provider("list: l, timeout: 1ms"), "5:34: timeout: 1ms is too short: write 1s to 24h", false},
		"no such pool":      {"the stage could never run", least + "stages: {s: {command: x, pool: b}}\n", `3:32: there is no pool "b": there is only a`, false},
		"pool mistyped":     {"the stage could never run", "project: p\npools: {win-vms: {items: []}, db: {items: []}}\nstages: {s: {command: x, pool: win-vm}}\n", `3:32: there is no pool "win-vm": did you mean win-vms? there are win-vms and db`, false},
		"stage of nothing":  {"it has no command", least + "stages:\n  s:\n", `4:3: stage "s" is empty: give it the field command`, true},
		"stage, no pool":    {"workers need keys", least + "stages: {s: {command: x}}\n", `3:10: stage "s" has no pool: add "pool:" with a name`, true},
		"stage, no command": {"workers need work", least + "stages: {s: {pool: a}}\n", `3:10: stage "s" has no command: add "command:" with the command to run`, true},
		"empty stage":       {"it cannot be left out", least + "stages: {s: {command: '', pool: a}}\n", "3:23: command: the command is empty: write one", true},
		"stage as switch":   {"nor here", least + "stages: {s: {command: true, pool: a}}\n", `3:23: command: true is no command but a switch, and there is none: write "true" in quotes for the program of that name`, true},
		"stages of nothing": {"leave it out instead", least + "stages:\n", "3:1: stages has no value: give it a mapping of names to fields, or leave the line out", true},

		// Several at once.
		"two": {
			"each is told, in the file's order, whatever found it first", "stages: {s: {command: x, pool: b}}\npools: {a: {items: [a b]}}\n",
			`1:1: the file has no project: add "project:" with a name` + "\n" +
				`qasight.yaml:1:32: there is no pool "b": there is only a` + "\n" +
				`qasight.yaml:2:21: items: "a b" has the character ' '` + chars, true,
		},
		"twelve": {"ten are enough for a day", item("-a, -b, -c, -d, -e, -f, -g, -h, -i, -j, -k, -l"), twelve(), true},
	}
}

func twelve() string {
	var b strings.Builder
	for i := range 10 {
		if i > 0 {
			b.WriteString("\nqasight.yaml:")
		}
		fmt.Fprintf(&b, "4:%d: items: %q begins with '-': begin it with a letter or digit", 13+4*i, "-"+string(rune('a'+i)))
	}
	b.WriteString("\nqasight.yaml: and 2 more: mend these first")
	return b.String()
}
