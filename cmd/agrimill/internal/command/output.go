package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
)

// notef writes a line to stderr. There is nowhere to report that writing failed.
func (p *program) notef(format string, args ...any) {
	_, _ = fmt.Fprintf(p.stderr, format+"\n", args...)
}

// writeLine writes a value to stdout as JSON in one line.
func (p *program) writeLine(value any) error {
	encoder := json.NewEncoder(p.stdout)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

func (p *program) writeJSON(value any) error {
	encoder := json.NewEncoder(p.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// write writes a value to stdout as JSON, or else calls text, which writes it for people.
func (p *program) write(value any, text func() error) error {
	if p.asJSON {
		return p.writeJSON(value)
	}
	return text()
}

// table is a table on stdout. Flush has the error of all its lines.
type table struct {
	*tabwriter.Writer
	widest int // how many characters of a cell are shown; 0: all
}

// table begins a table.
func (p *program) table(heading ...any) table {
	t := table{Writer: tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)}
	if len(heading) > 0 {
		t.row(heading...)
	}
	return t
}

// row adds a line of cells, each safe for a terminal.
func (t table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		if texts[i] = cell(fmt.Sprint(c)); t.widest > 0 {
			texts[i] = shorten(texts[i], t.widest)
		}
	}
	_, _ = fmt.Fprintln(t, strings.Join(texts, "\t"))
}

// cell makes a text safe for a terminal and a table.
func cell(text string) string { return cmp.Or(journal.Printable(text), "-") }

func shorten(text string, limit int) string {
	runes := []rune(text)
	if len(runes) <= limit {
		return text
	}
	return string(runes[:limit-1]) + "…"
}

func timeCell(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func quote(text string) string {
	if text != "" && !strings.ContainsFunc(text, func(r rune) bool { return r == ' ' || r == '"' || r == '\\' || r == '\uFFFD' || !strconv.IsPrint(r) }) {
		return text
	}
	return strconv.Quote(text)
}

// create writes a new file, or leaves none behind.
func create(name string, mode os.FileMode, write func(to io.Writer) error) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if err = write(file); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}
