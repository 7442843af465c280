package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/geo"
)

// Values of --output.
const (
	outputTable = "table"
	outputJSON  = "json"
	outputSVG   = "svg"
)

const shownName = 200 // characters

const shownFindings = 20 // of one kind of thing

type inspectView struct {
	output  string
	devices string // a file
	color   string // a DDI
}

func (v *inspectView) define(cmd *cobra.Command) {
	v.output = outputTable
	choice(cmd, &v.output, "output", "`FORMAT`: table, json or svg (default table)", outputTable, outputJSON, outputSVG)
	cmd.Flags().Func("color", "`DDI` of the values that color the tracks of --output svg, e.g. 0054 for a yield map", func(given string) error {
		ddi, err := farmdata.ParseDDI(given)
		if err != nil {
			return errors.New("must be up to four hexadecimal digits, e.g. 0054")
		}
		v.color = ddi.String()
		return nil
	})
	cmd.Flags().StringVar(&v.devices, "devices", "", "`FILE` with the device description of a log in EFDI")
}

func newInspectCommand(p *program) *cobra.Command {
	var view inspectView
	cmd := &cobra.Command{
		Use:     "inspect (FILE | - | trace ...)",
		GroupID: groupOther,
		Short:   "show what is in TaskData or EFDI",
		Long: `Reads farm data, TaskData (ISO 11783-10: a zip archive or a folder) or EFDI, and shows what
is in it: tasks, devices, fields, logs and their values. The file "-" is stdin. inspect trace
reads the payload of a message; write ./trace for a file of that name.

What cannot be read is listed as a finding, with its place; the rest is shown.

--output svg draws tracks, fields and prescription maps to scale, without a map from elsewhere.
--devices names a device description (EFDI), which says what the values of a log are.

Exit status: 0 it could be read, perhaps with findings; 1 it is no farm data.`,
		Example: `  agrimill inspect taskdata.zip
  agrimill inspect --output svg taskdata.zip > taskdata.svg
  agrimill inspect --output svg --color 0054 harvest.zip > yield.svg
  agrimill inspect --output json - < taskdata.zip`,
		Args: exactly("FILE, or - for stdin"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := p.describedBy(cmd.Context(), view.devices)
			if err != nil {
				return err
			}
			return p.inspectable(cmd.Context(), args[0], cfg, func(data *content.Data) error { return p.show(cmd.Context(), data, view) })
		},
	}
	view.define(cmd)
	cmd.AddCommand(newInspectTraceCommand(p))
	return cmd
}

// describedBy returns how farm data is read, with the devices in a file if there is one.
func (p *program) describedBy(ctx context.Context, file string) (cfg content.Config, err error) {
	if file == "" {
		return cfg, nil
	}
	if err := p.inspectable(ctx, file, cfg, func(data *content.Data) error {
		if cfg.EFDI.Devices = data.Sets[0].Devices; len(cfg.EFDI.Devices) == 0 {
			return fmt.Errorf("%s describes no device", cell(file))
		}
		return nil
	}); err != nil {
		return cfg, fmt.Errorf("--devices: %w", err)
	}
	return cfg, nil
}

func (p *program) show(ctx context.Context, data *content.Data, view inspectView) error {
	summary, err := content.Summarize(ctx, data)
	if err == nil && view.color != "" {
		if err = summary.Color(ctx, data, geo.Column{DDI: view.color}); err == nil {
			err = colored(summary, view.color)
		}
	}
	if err != nil {
		return err
	}
	switch view.output {
	case outputJSON:
		return p.writeJSON(summary)
	case outputSVG:
		return summary.WriteSVG(p.stdout)
	}
	return p.writeSummary(summary)
}

// colored returns an error if no log has values of a DDI: the picture would not have the colors that were asked for.
func colored(s *content.Summary, ddi string) error {
	var others []string
	for i := range s.Sets {
		for _, c := range valuesOf(&s.Sets[i]) {
			if c.DDI == ddi {
				return nil
			}
			others = append(others, c.DDI)
		}
	}
	slices.Sort(others)
	return fmt.Errorf("--color: no log has values of the DDI %s; there are: %s", ddi, cell(strings.Join(slices.Compact(others), " ")))
}

const maxInspected = 4 << 30 // bytes of stdin

func (p *program) inspectable(ctx context.Context, name string, cfg content.Config, use func(*content.Data) error) (err error) {
	var data *content.Data
	switch info, statErr := os.Stat(name); {
	case name == stdinName:
		name = "stdin"
		stdin, failure := p.spool(ctx, "", maxInspected)
		if failure != nil {
			return failure
		}
		defer func() { err = errors.Join(err, stdin.Close()) }()
		data, err = content.Open(ctx, stdin.At, stdin.Size, cfg)
	case statErr != nil:
		return statErr
	case info.IsDir():
		data, err = content.OpenFS(ctx, os.DirFS(name), cfg)
	case !info.Mode().IsRegular(): // it has no size, and opening a pipe may take for ever
		return fmt.Errorf("%s is a pipe or a device: write - instead, and give its content as stdin", cell(name))
	default:
		file, failure := os.Open(name)
		if failure != nil {
			return failure
		}
		defer func() { _ = file.Close() }() // only read
		data, err = content.Open(ctx, file, info.Size(), cfg)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", cell(name), admin.NotFarmData(err))
	}
	return use(data)
}

func (p *program) writeSummary(s *content.Summary) error {
	table := p.table(s.Line())
	table.widest = shownName // a column is as wide as its longest name
	for i := range s.Sets {
		table.set(&s.Sets[i])
	}
	table.findings(s.More)
	return table.Flush()
}

// heading begins a part with so many rows, unless there are none.
func (t table) heading(n int, cells ...any) {
	if n > 0 {
		_, _ = fmt.Fprintln(t)
		t.row(cells...)
	}
}

func (t table) set(set *content.Set) {
	heading, row := t.heading, t.row
	heading(len(set.Path)+len(set.Software)+len(set.Controller), "SET", "SOFTWARE", "CONTROLLER")
	if set.Path+set.Software+set.Controller != "" {
		row(set.Path, set.Software, set.Controller)
	}
	heading(len(set.Tasks), "TASK", "NAME", "STATUS", "CUSTOMER", "FARM", "FIELD", "LOGS")
	for _, task := range set.Tasks {
		row(task.ID, task.Name, task.Status, task.Customer, task.Farm, task.Field, len(task.Logs))
	}
	heading(len(set.Devices), "DEVICE", "NAME", "ISO NAME", "SOFTWARE", "SERIAL", "ELEMENTS")
	for _, d := range set.Devices {
		row(d.ID, d.Name, d.NAME, d.Software, d.Serial, d.Elements)
	}
	heading(len(set.Fields), "FIELD", "NAME", "M²", "CUSTOMER", "FARM")
	for _, f := range set.Fields {
		area := "" // unknown
		if f.Area > 0 {
			area = strconv.FormatInt(f.Area, 10)
		}
		row(f.ID, f.Name, area, f.Customer, f.Farm)
	}
	for _, list := range []struct {
		heading string
		named   []content.Named
	}{{"CUSTOMER", set.Customers}, {"FARM", set.Farms}, {"PRODUCT", set.Products}} {
		heading(len(list.named), list.heading, "NAME")
		for _, n := range list.named {
			row(n.ID, n.Name)
		}
	}
	t.prescriptions(set)
	heading(len(set.Logs), "LOG", "TASK", "RECORDS", "VALUES", "POSITIONS", "START", "END", "FINDINGS")
	for _, l := range set.Logs {
		row(l.Name, l.Task, l.Records, l.Values, l.Positions, l.Start, l.End, len(l.Findings))
	}
	columns := valuesOf(set)
	heading(len(columns), "DDI", "NAME", "ELEMENT", "DEVICE", "COUNT", "MIN", "MAX", "UNIT")
	for _, c := range columns {
		row(c.DDI, c.Name, c.Element, c.Device, c.Count, number(c.Min), number(c.Max), c.Unit)
	}
	t.totals(set.Totals)
	for _, by := range []content.By{content.ByTask, content.ByField, content.ByDevice, content.ByProduct} {
		sums := set.Sums[by]
		if by == content.ByProduct || slices.ContainsFunc(sums, func(w content.Work) bool { return w.Works > 1 }) { // otherwise they say nothing new
			t.sums(by, sums)
		}
	}
	list := set.Findings
	for _, l := range set.Logs {
		list = append(list[:len(list):len(list)], l.Findings...)
	}
	for _, g := range set.Grids {
		list = append(list[:len(list):len(list)], g.Findings...)
	}
	t.findings(list)
}

func (t table) prescriptions(set *content.Set) {
	heading, row := t.heading, t.row
	products := map[string]string{}
	for _, p := range slices.Backward(set.Products) {
		products[p.ID] = p.Name
	}
	named := func(ids []string) string {
		texts := make([]string, len(ids))
		for i, id := range ids {
			texts[i] = cmp.Or(products[id], id)
		}
		return strings.Join(texts, "; ")
	}
	heading(len(set.Grids), "GRID", "TASK", "FIELD", "TYPE", "ROWS", "COLUMNS", "CELLS", "FINDINGS")
	values := 0
	for _, g := range set.Grids {
		row(g.Name, strings.Join(g.Tasks, "; "), strings.Join(g.Fields, "; "), g.Type, g.Rows, g.Cols, g.Cells, len(g.Findings))
		values += len(g.Values)
	}
	heading(values, "GRID", "DDI", "NAME", "ELEMENT", "PRODUCT", "COUNT", "MIN", "MAX", "UNIT")
	for _, g := range set.Grids {
		for _, v := range g.Values {
			row(g.Name, v.DDI, v.Name, v.Element, named(v.Products), v.Count, number(v.Min), number(v.Max), v.Unit)
		}
	}
	heading(len(set.Zones), "ZONE", "ZONE NAME", "FOR", "TASK", "FIELD", "DDI", "NAME", "ELEMENT", "PRODUCT", "VALUE", "UNIT")
	for _, z := range set.Zones {
		code := "" // unknown
		if z.Code >= 0 {
			code = strconv.Itoa(z.Code)
		}
		elsewhere := strings.Join(z.Elsewhere, "; ")
		if len(z.Values) == 0 {
			row(code, z.Name, elsewhere, z.Task, z.Field, "", "", "", "", "", "")
		}
		for _, v := range z.Values {
			row(code, z.Name, elsewhere, z.Task, z.Field, v.DDI, v.Column.Name, v.Element, named(v.Products), number(v.Min), v.Unit)
		}
	}
}

// number has six digits, and all of a large whole part.
func number(f float64) string {
	if math.Abs(f) >= 1e6 && math.Abs(f) < 1e15 {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'g', 6, 64)
}

// valuesOf returns the columns of all logs, those that are alike together.
func valuesOf(set *content.Set) (columns []content.Column) {
	type key struct{ ddi, element, device, name, unit string }
	at := map[key]int{}
	for _, l := range set.Logs {
		for _, c := range l.Columns {
			k := key{c.DDI, c.Element, c.Device, c.Name, c.Unit}
			i, ok := at[k]
			switch {
			case c.Count == 0:
			case !ok:
				at[k] = len(columns)
				columns = append(columns, c)
			default:
				all := &columns[i]
				all.Count += c.Count
				all.Min, all.Max = min(all.Min, c.Min), max(all.Max, c.Max)
			}
		}
	}
	return columns
}

func (t table) findings(list []content.Finding) {
	t.heading(len(list), "FINDING")
	for _, f := range list[:min(len(list), shownFindings)] {
		t.row(f.Text)
	}
	if more := len(list) - shownFindings; more > 0 {
		t.row(fmt.Sprintf("and %d more; --output json has all of them", more))
	}
}
