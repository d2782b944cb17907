package poolcmd

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"fleetdesk/internal/qasight/cli/command"
)

// indented prints a table two blanks to the right. Columns are aligned over all
// rows, also those whose last cells are empty.
func indented(w io.Writer, rows [][]string) error {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			row[i] = command.Plain(cell)
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			line += "  " + cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	return nil
}
