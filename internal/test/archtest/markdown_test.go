package archtest

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// section is what stands between one heading and the next, of any level.
type section struct {
	heading string
	tables  []table
	clauses []string // of paragraphs and list items, in order
}

type table struct {
	header []string
	rows   []tableRow
}

type tableRow struct {
	line  int
	cells []string
}

// parseMarkdown reads the little of Markdown that the two pages use: headings,
// tables, paragraphs and flat lists.
func parseMarkdown(text string) []section {
	var (
		sections  = []section{{}}
		paragraph []string
		inTable   bool
	)
	current := func() *section { return &sections[len(sections)-1] }
	flush := func() {
		if len(paragraph) > 0 {
			current().clauses = append(current().clauses, clauses(strings.Join(paragraph, " "))...)
			paragraph = nil
		}
	}
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		isRow := strings.HasPrefix(line, "|")
		if !isRow {
			inTable = false
		}
		switch {
		case strings.HasPrefix(line, "#"):
			flush()
			sections = append(sections, section{heading: strings.TrimSpace(strings.TrimLeft(line, "#"))})
		case isRow:
			flush()
			cells := splitRow(line)
			switch {
			case !inTable:
				current().tables = append(current().tables, table{header: cells})
				inTable = true
			case strings.Trim(strings.Join(cells, ""), "-: ") == "":
			default:
				t := &current().tables[len(current().tables)-1]
				t.rows = append(t.rows, tableRow{n + 1, cells})
			}
		case line == "":
			flush()
		case strings.HasPrefix(line, "- "):
			flush()
			paragraph = []string{line[2:]}
		default:
			paragraph = append(paragraph, line)
		}
	}
	flush()
	return sections
}

// splitRow splits at the bars that are not inside backquotes.
func splitRow(line string) []string {
	line = strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|")
	var (
		cells []string
		code  bool
		start int
	)
	for i, c := range line {
		switch {
		case c == '`':
			code = !code
		case c == '|' && !code:
			cells = append(cells, strings.TrimSpace(line[start:i]))
			start = i + 1
		}
	}
	return append(cells, strings.TrimSpace(line[start:]))
}

// clauses splits a paragraph at the full stops and semicolons outside
// backquotes that a space follows: every piece can be asked for on its own.
func clauses(paragraph string) []string {
	var (
		list  []string
		code  bool
		start int
	)
	add := func(s string) {
		// What ends in a colon announces a list or a table and asks for nothing.
		if s = strings.Trim(s, " .;"); s != "" && !strings.HasSuffix(s, ":") {
			list = append(list, s)
		}
	}
	for i := range len(paragraph) {
		switch c := paragraph[i]; {
		case c == '`':
			code = !code
		case (c == '.' || c == ';') && !code && i+1 < len(paragraph) && paragraph[i+1] == ' ':
			add(paragraph[start:i])
			start = i + 1
		}
	}
	add(paragraph[start:])
	return list
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// codeSpans are the texts in backquotes.
func codeSpans(s string) []string {
	var list []string
	for _, m := range codeSpan.FindAllStringSubmatch(s, -1) {
		list = append(list, m[1])
	}
	return list
}

// plain is a cell without backquotes.
func plain(cell string) string { return strings.TrimSpace(strings.ReplaceAll(cell, "`", "")) }

// keysOf lists what the rows of a table of the specification are about: the
// first cell, or for the moves between states, which have no name, subject and
// number; of an enumeration and of the query parameter also each value.
func keysOf(t table) []string {
	var keys []string
	for i, r := range t.rows {
		key := plain(r.cells[0])
		switch {
		case t.header[0] == "Subject":
			key += " " + strconv.Itoa(i+1)
		case len(t.header) > 1 && t.header[1] == "Values":
			keys = append(keys, codeSpans(r.cells[1])...)
		case t.header[0] == "Query parameter":
			keys = append(keys, codeSpans(r.cells[3])...)
		case t.header[0] == "Status":
			// One row for several statuses asks for each of them.
			keys = append(keys, strings.Split(key, ", ")...)
			continue
		}
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
