package sqldb

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// statement is one SQL text for both kinds of database. Those that keep rows
// (set) take any number of them at once; the others have arguments.
type statement struct {
	postgres, sqlite string
	set              []column
	// exact: see [exactly].
	exact bool
}

// column is a column with the kind of its values: a Go type of the rows that are
// given (string, int64, bool, []byte, float64).
type column struct {
	name string
	kind kind
	// was is the column's own name where the value is the one that it had.
	was string
}

type kind string

// The kinds, by PostgreSQL's names.
const (
	text    kind = "text"
	integer kind = "bigint"
	boolean kind = "boolean"
	blob    kind = "bytea"
	float   kind = "double precision"
)

func columns(k kind, names ...string) (all []column) {
	for _, n := range names {
		all = append(all, column{name: n, kind: k})
	}
	return all
}

var (
	anyOf       = regexp.MustCompile(`= ANY \(\$(\d+)\)`)
	placeholder = regexp.MustCompile(`\$(\d+)`)
)

// plain makes a statement from PostgreSQL's text; what of it SQLite says
// otherwise is the schema, the arguments, and = ANY ($1) for a list of texts.
func plain(sql string) *statement {
	lite := strings.ReplaceAll(sql, "fleetdesk.", "")
	lite = anyOf.ReplaceAllString(lite, "IN (SELECT value FROM json_each(?$1))")
	return &statement{postgres: sql, sqlite: placeholder.ReplaceAllString(lite, "?$1")}
}

// upsert keeps rows, in place of those with the same first `keys` columns.
func upsert(table string, keys int, cols ...column) *statement {
	s := insert(table, cols...)
	names := namesOf(cols)
	var set []string
	for _, n := range names[keys:] {
		set = append(set, n+" = excluded."+n)
	}
	more := fmt.Sprintf(" ON CONFLICT (%s) DO UPDATE SET %s", strings.Join(names[:keys], ", "), strings.Join(set, ", "))
	s.postgres += more
	s.sqlite += more
	return s
}

// insert adds rows.
func insert(table string, cols ...column) *statement {
	names := strings.Join(namesOf(cols), ", ")
	return &statement{
		postgres: fmt.Sprintf("INSERT INTO fleetdesk.%s (%s) SELECT * FROM %s", table, names, unnest(cols)),
		sqlite:   fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table, names, strings.Join(marks(cols), ", ")),
		set:      cols,
	}
}

// update changes the rows that have the values of the first `keys` columns;
// also is set besides the given values.
func update(table string, keys int, also string, cols ...column) *statement {
	var fromRows, fromArgs, where, match []string
	names, marks := namesOf(cols), marks(cols)
	if also != "" {
		fromRows, fromArgs = []string{also}, []string{also}
	}
	for i, n := range names {
		if i < keys {
			had := cmp.Or(cols[i].was, n)
			where, match = append(where, "t."+had+" = w."+n), append(match, "t."+had+" = "+marks[i])
		} else {
			fromRows, fromArgs = append(fromRows, n+" = w."+n), append(fromArgs, n+" = "+marks[i])
		}
	}
	return &statement{
		postgres: fmt.Sprintf("UPDATE fleetdesk.%s AS t SET %s FROM %s AS w (%s) WHERE %s",
			table, strings.Join(fromRows, ", "), unnest(cols), strings.Join(names, ", "), strings.Join(where, " AND ")),
		sqlite: fmt.Sprintf("UPDATE %s AS t SET %s WHERE %s", table, strings.Join(fromArgs, ", "), strings.Join(match, " AND ")),
		set:    cols,
	}
}

// remove deletes the rows that have the values.
func remove(table string, cols ...column) *statement {
	var where, match []string
	marks := marks(cols)
	for i, n := range namesOf(cols) {
		where, match = append(where, "t."+n+" = w."+n), append(match, "t."+n+" = "+marks[i])
	}
	return &statement{
		postgres: fmt.Sprintf("DELETE FROM fleetdesk.%s AS t USING %s AS w (%s) WHERE %s",
			table, unnest(cols), strings.Join(namesOf(cols), ", "), strings.Join(where, " AND ")),
		sqlite: fmt.Sprintf("DELETE FROM %s AS t WHERE %s", table, strings.Join(match, " AND ")),
		set:    cols,
	}
}

// exactly makes a statement for rows fail when it meets another number of rows
// than it was given: some were changed by others, or are gone. PostgreSQL must
// find that by itself, since the commit is sent along: it divides by zero.
func exactly(s *statement) *statement {
	e := *s
	e.postgres = fmt.Sprintf("WITH met AS (%s RETURNING 1) SELECT 1 / (CASE WHEN count(*) = $%d THEN 1 ELSE 0 END) FROM met",
		s.postgres, len(s.set)+1)
	e.exact = true
	return &e
}

func namesOf(cols []column) (names []string) {
	for _, c := range cols {
		names = append(names, c.name)
	}
	return names
}

// unnest is rows of as many arrays as there are columns.
func unnest(cols []column) string {
	var arrays []string
	for i, c := range cols {
		arrays = append(arrays, "$"+strconv.Itoa(i+1)+"::"+string(c.kind)+"[]")
	}
	return "unnest(" + strings.Join(arrays, ", ") + ")"
}

func marks(cols []column) (all []string) {
	for i := range cols {
		all = append(all, "?"+strconv.Itoa(i+1))
	}
	return all
}
