package sqldb

import (
	"fmt"
	"slices"
	"strings"

	"fleetdesk/internal/core/lease"
)

// The tables of lines.
var (
	lineID      = columns(text, "pool", "target", "asked")
	lineColumns = slices.Concat(lineID, columns(integer, "no", "began", "used", "first", "mark"))
	placeID     = columns(integer, "line", "parked", "turn", "own", "seat")
	placeRow    = slices.Concat(placeID, columns(text, "key"))
)

func lineValues(l *lease.Line) []any {
	return []any{l.Pool, l.Target, l.Ask, l.No, micros(l.Began), micros(l.Used), l.First, l.Mark}
}

func scanLine(r scanner) (l lease.Line, err error) {
	var began, used int64
	err = r.Scan(&l.Pool, &l.Target, &l.Ask, &l.No, &began, &used, &l.First, &l.Mark)
	l.Began, l.Used = moment(began), moment(used)
	return l, err
}

func placeValues(p *lease.Place) []any {
	return append(placeIDValues(p), p.Key)
}

func placeIDValues(p *lease.Place) []any {
	return []any{p.Line, micros(p.Parked), micros(p.Turn), micros(p.Own), p.Seat}
}

// What a row about a line is.
const (
	rowLine = iota
	rowDue
	rowReady
	rowFresh
)

// wanted is what a question about a line has: which one it is, the time, since
// when it must have been used, how many rows of each kind, the question's number,
// how many free keys its pool must have at least for an answer, and behind which
// rows the answer begins.
var wanted = slices.Concat(lineID, columns(integer, "now", "since", "due", "ready", "behind", "fresh", "n", "over",
	"due_parked", "due_turn", "due_own", "due_seat", "ready_turn", "ready_own", "ready_seat", "fresh_seat"))

// head is a row about the line itself and its pool, w being the question: with the
// first end of a rest that is to come, and the last seat.
func head(w func(name string) string) string {
	line := []string{}
	for _, c := range []string{"no", "began", "used", "first", "mark"} {
		line = append(line, fmt.Sprintf("coalesce(max(l.%s), 0) AS %s", c, c))
	}
	return fmt.Sprintf(`SELECT %s, coalesce((SELECT m.seat FROM fleetdesk.members m WHERE m.pool = %s AND m.seat > 0 AND NOT m.leaving ORDER BY m.seat DESC LIMIT 1), 0) AS last
		FROM fleetdesk.lines l WHERE l.pool = %s AND l.target = %s AND l.asked = %s AND l.used >= %s`,
		strings.Join(line, ", "), w("pool"), w("pool"), w("target"), w("asked"), w("since"))
}

// lineRows are the rows of a line that a walk looks at, w being the question: its
// head, the places, and the keys beyond the mark. ready is how many in the order of
// turns.
func lineRows(w func(name string) string, head, no, mark, ready string) string {
	behind := func(kind string, cols ...string) string {
		var had, is []string
		for _, c := range cols {
			had, is = append(had, w(kind+"_"+c)), append(is, "p."+c)
		}
		return " AND (" + strings.Join(is, ", ") + ") > (" + strings.Join(had, ", ") + ")"
	}
	places := func(kind int, where, order string) string {
		return fmt.Sprintf(`SELECT * FROM (SELECT %d AS what, p.line, p.parked, p.turn, p.own, p.seat, p.key, CAST(0 AS bigint) AS mark, CAST(0 AS bigint) AS last FROM fleetdesk.places p
			WHERE p.line = %s AND %s ORDER BY %s) s%d`, kind, no, where, order, kind)
	}
	return strings.Join([]string{
		fmt.Sprintf(`SELECT * FROM (SELECT %d AS what, s.no AS line, s.began AS parked, s.used AS turn,
			coalesce((SELECT p.parked FROM fleetdesk.places p WHERE p.line = %s AND p.parked > %s ORDER BY p.parked LIMIT 1), 0) AS own,
			s.first AS seat, '' AS key, s.mark, s.last%s) s%d`, rowLine, no, w("now"), head, rowLine),
		places(rowDue, "p.parked > 0 AND p.parked <= "+w("now")+behind("due", "parked", "turn", "own", "seat"), "p.parked, p.turn, p.own, p.seat LIMIT "+w("due")),
		places(rowReady, "p.parked = 0"+behind("ready", "turn", "own", "seat"), "p.turn, p.own, p.seat LIMIT "+ready),
		fmt.Sprintf(`SELECT * FROM (SELECT %d AS what, CAST(0 AS bigint) AS line, CAST(0 AS bigint) AS parked, CAST(0 AS bigint) AS turn, CAST(0 AS bigint) AS own, m.seat, m.key, CAST(0 AS bigint) AS mark, CAST(0 AS bigint) AS last
			FROM fleetdesk.members m WHERE m.pool = %s AND m.seat > 0 AND NOT m.leaving AND m.seat > %s AND m.seat > %s ORDER BY m.seat LIMIT %s) s%d`,
			rowFresh, w("pool"), mark, w("fresh_seat"), w("fresh"), rowFresh),
	}, " UNION ALL ")
}

// nullable reads columns of a row that may be missing.
func nullable(alias string, cols []column) string {
	var all []string
	for _, c := range cols {
		none := map[kind]string{text: "''", integer: "0", boolean: "false"}[c.kind]
		all = append(all, "coalesce("+alias+"."+c.name+", "+none+")")
	}
	return strings.Join(all, ", ")
}

// What a walk looks at of a key, see [lease.Key.Glance], and what is remembered of
// it or its address besides which it is. Whole rows are four times as wide.
var (
	glanceColumns = slices.Concat(columns(text, "name", "pools", "exit_ip", "ended"), columns(boolean, "needs_reset", "unclaimed", "reset_hook"),
		columns(integer, "seat", "joined", "free_at", "cool_until", "fence", "expires"))
	restColumns = cooldownColumns[len(cooldownID):]
)

// loadLines answers questions about lines, with the keys of all rows and what is
// remembered of them for the target: of the key, and of its address.
var loadLines = func() *statement {
	selected := func(asked string) string {
		return "q.what, q.line, q.parked, q.turn, q.own, q.seat, q.key, q.mark, q.last, " + nullable("k", glanceColumns) +
			", CASE WHEN " + asked + " = '' THEN '' ELSE coalesce(k.attributes, '') END, " +
			"c.id IS NOT NULL, " + nullable("c", restColumns) + ", d.id IS NOT NULL, " + nullable("d", restColumns)
	}
	ofWanted := func(name string) string { return "w." + name }
	one := func(table, alias, where string) string {
		return " LEFT JOIN LATERAL (SELECT * FROM fleetdesk." + table + " " + alias + " WHERE " + where + " OFFSET 0) " + alias + " ON true"
	}
	postgres := "SELECT w.n, " + selected("w.asked") + " FROM " + unnest(wanted) + " AS w (" + strings.Join(namesOf(wanted), ", ") + ")" +
		" CROSS JOIN LATERAL (" + head(ofWanted) + " OFFSET 0) s" +
		" CROSS JOIN LATERAL (" + lineRows(ofWanted, "", "s.no", "s.mark", "CASE WHEN s.last > s.mark THEN w.behind ELSE w.ready END") + ") q" +
		one("keys", "k", "k.name = q.key") +
		one("cooldowns", "c", "c.scope = 'key' AND c.id = q.key AND c.target = w.target") +
		one("cooldowns", "d", "d.scope = 'exitIP' AND d.id = k.exit_ip AND d.target = w.target") +
		" WHERE (SELECT count(*) FROM (SELECT 1 FROM fleetdesk.ready r WHERE r.pool = w.pool AND r.free_at <= w.now ORDER BY r.free_at LIMIT w.over) r) = w.over"
	// SQLite is asked line by line, and answers in any case.
	numbered := func(name string) string {
		return fmt.Sprint("?", 1+slices.Index(namesOf(wanted), name))
	}
	number := func(column string) string {
		return fmt.Sprintf("coalesce((SELECT l.%s FROM fleetdesk.lines l WHERE l.pool = %s AND l.target = %s AND l.asked = %s AND l.used >= %s), 0)",
			column, numbered("pool"), numbered("target"), numbered("asked"), numbered("since"))
	}
	lite := "SELECT " + numbered("n") + ", " + selected(numbered("asked")) + " FROM (" + lineRows(numbered, " FROM ("+head(numbered)+") s", number("no"), number("mark"), numbered("ready")) + ") q" +
		" LEFT JOIN fleetdesk.keys k ON k.name = q.key" +
		" LEFT JOIN fleetdesk.cooldowns c ON c.scope = 'key' AND c.id = q.key AND c.target = " + numbered("target") +
		" LEFT JOIN fleetdesk.cooldowns d ON d.scope = 'exitIP' AND d.id = k.exit_ip AND d.target = " + numbered("target")
	return &statement{postgres: postgres, sqlite: strings.ReplaceAll(lite, "fleetdesk.", ""), set: wanted, oneByOne: true}
}()

var (
	loadFree = plain("SELECT count(*) FROM (SELECT 1 FROM fleetdesk.ready r WHERE r.pool = $1 AND r.free_at <= $2 ORDER BY r.free_at LIMIT $3) s")
	// A pool has few lines for one target.
	loadLinesOf = plain(selectAll("fleetdesk.lines", "l", lineColumns) + " WHERE l.pool = $1 AND l.target = $2 ORDER BY l.no")
	loadSeats   = keysOf("SELECT m.key FROM fleetdesk.members m WHERE m.pool = $1 AND m.seat > 0 AND NOT m.leaving AND m.seat > $2 ORDER BY m.seat LIMIT $3", "")

	retireLinesOf = plain("INSERT INTO fleetdesk.old_lines (no) SELECT l.no FROM fleetdesk.lines l WHERE l.pool = ANY ($1)")
	dropLinesOf   = plain("DELETE FROM fleetdesk.lines WHERE pool = ANY ($1)")
	retireLines   = &statement{
		postgres: "INSERT INTO fleetdesk.old_lines (no) SELECT l.no FROM " + unnest(lineColumns[:4]) + " AS w (" + strings.Join(namesOf(lineColumns[:4]), ", ") +
			") CROSS JOIN LATERAL (SELECT l.no FROM fleetdesk.lines l WHERE l.pool = w.pool AND l.target = w.target AND l.asked = w.asked AND l.no <> w.no OFFSET 0) l",
		sqlite: "INSERT INTO old_lines (no) SELECT l.no FROM lines l WHERE l.pool = ?1 AND l.target = ?2 AND l.asked = ?3 AND l.no <> ?4",
		set:    lineColumns[:4],
	}
	dropSomeLines = remove("lines", lineID...)
	saveLines     = upsert("lines", 3, lineColumns...)
	dropPlaces    = remove("places", placeID...)
	savePlaces    = upsert("places", 5, placeRow...)

	forgetLines = plain("INSERT INTO fleetdesk.old_lines (no) SELECT l.no FROM fleetdesk.lines l WHERE l.used < $1 ORDER BY l.used, l.no LIMIT $2")
	dropLines   = &statement{
		postgres: "DELETE FROM fleetdesk.lines WHERE ctid = ANY (ARRAY(SELECT l.ctid FROM fleetdesk.lines l WHERE l.used < $1 ORDER BY l.used, l.no LIMIT $2))",
		sqlite: "DELETE FROM lines WHERE (pool, target, asked) IN " +
			"(SELECT l.pool, l.target, l.asked FROM lines l WHERE l.used < ?1 ORDER BY l.used, l.no LIMIT ?2)",
	}
	// The places of some lines at a time go.
	firstOldLines = "(SELECT o.no FROM fleetdesk.old_lines o WHERE o.no > 0 ORDER BY o.no LIMIT 64) n"
	forgetPlaces  = &statement{
		postgres: "DELETE FROM fleetdesk.places WHERE ctid = ANY (ARRAY(SELECT p.spot FROM " + firstOldLines +
			" CROSS JOIN LATERAL (SELECT p.ctid AS spot FROM fleetdesk.places p WHERE p.line = n.no OFFSET 0) p LIMIT $1))",
		sqlite: "DELETE FROM places WHERE (line, parked, turn, own, seat) IN (SELECT p.line, p.parked, p.turn, p.own, p.seat FROM " +
			strings.ReplaceAll(firstOldLines, "fleetdesk.", "") + " CROSS JOIN places p ON p.line = n.no LIMIT ?1)",
	}
	forgetOldLines = plain("DELETE FROM fleetdesk.old_lines WHERE no IN {SELECT n.no FROM " + firstOldLines +
		" WHERE coalesce((SELECT 1 FROM fleetdesk.places p WHERE p.line = n.no LIMIT 1), 0) = 0}")
)

// loadLines makes the steps that ask for lines.
func (t *leaseTx) loadLines(all []lease.LineWant, found []lease.LineFound) (steps []step) {
	var rows [][]any
	for n, w := range all {
		if storable(w.Pool) && storable(w.Target) {
			d, r := &w.AfterDue, &w.AfterReady
			rows = append(rows, []any{
				w.Pool, w.Target, w.Ask, micros(t.begin.Now), micros(w.Since), oneMore(w.Due), oneMore(w.Ready), oneMore(w.Behind), oneMore(w.Fresh), int64(n), int64(w.Over) + 1,
				micros(d.Parked), micros(d.Turn), micros(d.Own), d.Seat, micros(r.Turn), micros(r.Own), r.Seat, w.AfterFresh,
			})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return []step{{statement: loadLines, rows: rows, row: func(r scanner) error { return t.lineRow(r, all, found) }}}
}

// oneMore than is wanted tells whether there are more; of none nothing is told.
func oneMore(n int) int64 {
	if n == 0 {
		return 0
	}
	return int64(n) + 1
}

// lineRow takes one row about a line.
func (t *leaseTx) lineRow(r scanner, all []lease.LineWant, found []lease.LineFound) error {
	var (
		n, what                           int
		parked, turn, own, mark, last     int64
		p                                 lease.Place
		k                                 lease.Key
		l                                 lease.Lease
		pools, attributes                 string
		joined, free, cool, fence, expiry int64
		rests                             [2]lease.Cooldown
		has                               [2]bool
		times                             [2][4]int64
		uses                              [2]string
	)
	into := func(i int) []any {
		c, x := &rests[i], &times[i]
		return []any{&has[i], &x[0], &c.Strikes, &x[1], &x[2], &x[3], &uses[i]}
	}
	c, d := into(0), into(1)
	err := r.Scan(
		&n, &what, &p.Line, &parked, &turn, &own, &p.Seat, &p.Key, &mark, &last,
		&k.Name, &pools, &k.ExitIP, (*string)(&l.End), &k.NeedsReset, &l.Unclaimed, &l.Hooks.Reset, &k.Seat, &joined, &free, &cool, &fence, &expiry, &attributes,
		c[0], c[1], c[2], c[3], c[4], c[5], c[6], d[0], d[1], d[2], d[3], d[4], d[5], d[6],
	)
	if err != nil {
		return err
	}
	f := &found[n]
	p.Parked, p.Turn, p.Own = moment(parked), moment(turn), moment(own)
	switch what {
	case rowLine:
		f.Next, f.Last = p.Own, last
		if p.Line > 0 {
			f.Line = &lease.Line{LineID: all[n].LineID, No: p.Line, Began: p.Parked, Used: p.Turn, First: p.Seat, Mark: mark}
		}
		return nil
	case rowDue:
		f.Due = append(f.Due, p)
	case rowReady:
		f.Ready = append(f.Ready, p)
	case rowFresh:
		f.Fresh = append(f.Fresh, p)
	}
	if k.Name == "" {
		return nil // it is gone
	}
	k.Pools, k.Joined, k.CoolUntil = names(pools), moment(joined), moment(cool)
	if moment(free).Equal(lease.Never()) {
		k.Unfit = "out of use"
	}
	if fence != 0 && l.End == "" {
		l.Expires = moment(expiry)
		k.Lease = &l
	}
	if k.Attributes, err = pairsOf(attributes); err != nil {
		return err
	}
	f.Keys = append(f.Keys, k)
	ids := [2]lease.CooldownID{{Scope: lease.ScopeKey, ID: k.Name, Target: all[n].Target}, {Scope: lease.ScopeExitIP, ID: k.ExitIP, Target: all[n].Target}}
	for i, c := range rests {
		if !has[i] {
			continue
		}
		x := times[i]
		c.CooldownID, c.Until, c.BannedUntil, c.Forget, c.Turn = ids[i], moment(x[0]), moment(x[1]), moment(x[2]), moment(x[3])
		if c.Uses, err = usesOf(uses[i]); err != nil {
			return err
		}
		f.Cooldowns = append(f.Cooldowns, c)
	}
	return nil
}

// inOrder puts the rows of lines in order, which no database need keep, and cuts
// what is beyond the limits off.
func inOrder(w lease.LineWant, f *lease.LineFound) {
	mark := int64(0)
	if f.Line != nil {
		mark = f.Line.Mark
	}
	for _, l := range []struct {
		list *[]lease.Place
		more *bool
		most int
	}{{&f.Due, &f.MoreDue, w.Due}, {&f.Ready, &f.MoreReady, w.ReadyOf(mark, f.Last)}, {&f.Fresh, &f.MoreFresh, w.Fresh}} {
		slices.SortFunc(*l.list, lease.Place.Compare)
		*l.more = len(*l.list) > l.most
		*l.list = (*l.list)[:min(len(*l.list), l.most)]
	}
}

// saveLinesOf writes what changed of lines.
func saveLinesOf(c *lease.Changes, set func(*statement, [][]any), add func(*statement, ...any)) {
	if len(c.DropLinesOf) > 0 {
		add(retireLinesOf, c.DropLinesOf)
		add(dropLinesOf, c.DropLinesOf)
	}
	gone := rowsOf(c.DropLines, func(id *lease.LineID) []any { return []any{id.Pool, id.Target, id.Ask} })
	lines := rowsOf(c.Lines, lineValues)
	var retired [][]any
	for _, l := range lines {
		retired = append(retired, l[:4])
	}
	for _, id := range gone {
		retired = append(retired, append(slices.Clone(id), int64(0))) // none has that number
	}
	set(retireLines, retired)
	set(dropSomeLines, gone)
	set(saveLines, lines)
	set(dropPlaces, rowsOf(c.DropPlaces, placeIDValues))
	set(savePlaces, rowsOf(c.Places, placeValues))
}
