package sqldb

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// statement is one SQL text for both kinds of database. Those for rows (set) take
// any number of them at once; the others have arguments.
type statement struct {
	postgres, sqlite string
	set              []column
	// exact: see [exactly].
	exact bool
	// oneByOne statements are asked of SQLite row by row.
	oneByOne bool
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
// IN {SELECT …} is for a subquery that PostgreSQL must answer once and first.
func plain(sql string) *statement {
	lite := strings.ReplaceAll(sql, "fleetdesk.", "")
	lite = anyOf.ReplaceAllString(lite, "IN (SELECT value FROM json_each(?$1))")
	lite = strings.NewReplacer("{", "(", "}", ")").Replace(placeholder.ReplaceAllString(lite, "?$1"))
	return &statement{postgres: strings.NewReplacer("IN {", "= ANY (ARRAY(", "}", "))").Replace(sql), sqlite: lite}
}

// each makes a statement that looks a row of a table up for each row n of a
// subquery, in that order of looking whatever a planner believes: the table may
// be large when its statistics are of a time when it was empty.
func each(cols, subquery, table, alias, on, order string) *statement {
	s := plain("SELECT " + cols + " FROM (" + subquery + ") n CROSS JOIN LATERAL (SELECT * FROM fleetdesk." + table + " " + alias + " WHERE " + on + " OFFSET 0) " + alias + order)
	s.sqlite = plain("SELECT " + cols + " FROM (" + subquery + ") n CROSS JOIN " + table + " " + alias + " WHERE " + on + order).sqlite
	return s
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
	var fromRows, fromArgs []string
	marks := marks(cols)
	if also != "" {
		fromRows, fromArgs = []string{also}, []string{also}
	}
	for i, n := range namesOf(cols) {
		if i >= keys {
			fromRows, fromArgs = append(fromRows, n+" = w."+n), append(fromArgs, n+" = "+marks[i])
		}
	}
	from, where, match := rowsMet(table, keys, cols)
	return &statement{
		postgres: fmt.Sprintf("UPDATE fleetdesk.%s AS t SET %s FROM %s WHERE %s", table, strings.Join(fromRows, ", "), from, where),
		sqlite:   fmt.Sprintf("UPDATE %s AS t SET %s WHERE %s", table, strings.Join(fromArgs, ", "), match),
		set:      cols,
	}
}

// remove deletes the rows that have the values.
func remove(table string, cols ...column) *statement {
	from, where, match := rowsMet(table, len(cols), cols)
	return &statement{
		postgres: fmt.Sprintf("DELETE FROM fleetdesk.%s AS t USING %s WHERE %s", table, from, where),
		sqlite:   fmt.Sprintf("DELETE FROM %s AS t WHERE %s", table, match),
		set:      cols,
	}
}

// rowsMet finds the rows of a table that have the values of the first `keys`
// columns. PostgreSQL looks each up by itself, as in [each], and takes it by
// where it lies: nobody moves rows while the desk is locked.
func rowsMet(table string, keys int, cols []column) (from, where, match string) {
	var had, is []string
	names, marks := namesOf(cols), marks(cols)
	for i := range keys {
		own := cmp.Or(cols[i].was, names[i])
		had, is = append(had, "f."+own+" = w."+names[i]), append(is, "t."+own+" = "+marks[i])
	}
	from = fmt.Sprintf("%s AS w (%s) CROSS JOIN LATERAL (SELECT f.ctid AS spot FROM fleetdesk.%s f WHERE %s OFFSET 0) found",
		unnest(cols), strings.Join(names, ", "), table, strings.Join(had, " AND "))
	return from, "t.ctid = found.spot", strings.Join(is, " AND ")
}

// rowsOfEach makes a statement that reads the rows of a table with the values
// that it is given, many at once.
func rowsOfEach(selected, table, alias string, cols ...column) *statement {
	var had, is []string
	for i, n := range namesOf(cols) {
		had = append(had, alias+"."+n+" = w."+n)
		is = append(is, fmt.Sprintf("%s.%s = json_extract(w.value, '$[%d]')", alias, n, i))
	}
	return &statement{
		postgres: fmt.Sprintf("SELECT %s FROM %s AS w (%s) CROSS JOIN LATERAL (SELECT * FROM fleetdesk.%s %s WHERE %s OFFSET 0) %s",
			selected, unnest(cols), strings.Join(namesOf(cols), ", "), table, alias, strings.Join(had, " AND "), alias),
		sqlite: fmt.Sprintf("SELECT %s FROM json_each(?1) w CROSS JOIN %s %s WHERE %s", selected, table, alias, strings.Join(is, " AND ")),
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
