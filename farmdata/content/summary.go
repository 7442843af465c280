package content

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/columns"
)

// Summary says what is in farm data. Lists that are empty are empty, not nil. IDs and names are cut to 200 characters.
type Summary struct {
	Form Form      `json:"form"`
	Sets []Set     `json:"sets"`
	More []Finding `json:"findings"` // about files that belong to no set
}

// Set is the summary of a farmdata.Set.
type Set struct {
	// Path is the folder in the archive, Version the version that the data claims.
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	// Software and Controller are who made the data.
	Software   string `json:"software,omitempty"`
	Controller string `json:"controller,omitempty"`

	// What is in the set, in the order of the data.
	Tasks     []Task    `json:"tasks"`
	Devices   []Device  `json:"devices"`
	Customers []Named   `json:"customers"`
	Farms     []Named   `json:"farms"`
	Fields    []Field   `json:"fields"`
	Products  []Named   `json:"products"`
	Logs      []Log     `json:"logs"`
	Grids     []Grid    `json:"grids"`
	Zones     []Zone    `json:"zones"`
	Findings  []Finding `json:"findings"`
	// Totals are what each machine did in each task.
	Totals []Work `json:"totals"`
	// Sums are the Totals summed up by Sum.
	Sums     map[By][]Work `json:"sums"`
	tracks   []*track      // of the logs, for a picture
	outlines []area        // of fields, grids and zones
	rates    []rates       // of grids and zones
}

// Named is something with an ID and a name for people.
type Named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Task is the summary of a task. Customer, Farm, Field and Worker are IDs.
type Task struct {
	Named
	// Status is one of planned, running, paused, completed, template, canceled; empty if unknown.
	Status   string   `json:"status,omitempty"`
	Customer string   `json:"customer,omitempty"`
	Farm     string   `json:"farm,omitempty"`
	Field    string   `json:"field,omitempty"`
	Worker   string   `json:"worker,omitempty"`
	Logs     []string `json:"logs"`
}

// Device is the summary of a machine.
type Device struct {
	Named
	// NAME is that of ISO 11783, 16 hexadecimal digits.
	NAME     string `json:"iso_name,omitempty"`
	Software string `json:"software,omitempty"`
	Serial   string `json:"serial,omitempty"`
	Elements int    `json:"elements"`
}

// Field is the summary of a field.
type Field struct {
	Named
	// Area is in square meters; 0 if unknown.
	Area     int64  `json:"area,omitempty"`
	Customer string `json:"customer,omitempty"`
	Farm     string `json:"farm,omitempty"`
	// Box is what its boundary is in; nil without one.
	Box *Box `json:"box,omitempty"`
}

// Log is the summary of a log.
type Log struct {
	Name string `json:"name"`
	Task string `json:"task,omitempty"`
	// Bytes is its size, Records and Values how many could be read, Positions the
	// records with a valid one.
	Bytes     int64 `json:"bytes"`
	Records   int64 `json:"records"`
	Values    int64 `json:"values"`
	Positions int64 `json:"positions"`
	// Start and End are the times of the first and the last record that have one.
	Start farmdata.Stamp `json:"start"`
	End   farmdata.Stamp `json:"end"`
	// Box is what its positions are in; nil without any.
	Box *Box `json:"box,omitempty"`
	// Columns are the values, in the order in which they first came.
	Columns  []Column  `json:"columns"`
	Findings []Finding `json:"findings"`
}

// Column is the summary of the values of one DDI of one device element.
type Column struct {
	DDI     string `json:"ddi"`
	Name    string `json:"name,omitempty"`
	Element string `json:"element,omitempty"`
	Device  string `json:"device,omitempty"`
	Unit    string `json:"unit,omitempty"`
	// Count is how many values there are, Min and Max their range in Unit; zero without any. A value that
	// the log has once for all of its records counts for each of them.
	Count int64   `json:"count"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
}

// Box is a part of the Earth in degrees of WGS 84.
type Box struct {
	South float64 `json:"south"`
	West  float64 `json:"west"`
	North float64 `json:"north"`
	East  float64 `json:"east"`
}

func (b *Box) add(p latLon) *Box {
	if b == nil {
		return &Box{South: p.north, West: p.east, North: p.north, East: p.east}
	}
	b.South, b.North = min(b.South, p.north), max(b.North, p.north)
	b.West, b.East = min(b.West, p.east), max(b.East, p.east)
	return b
}

// around returns the box of what goes across the 180th meridian: all around the Earth.
func (b *Box) around() *Box {
	b.West, b.East = -180, 180
	return b
}

// Finding is a farmdata.Finding as data.
type Finding struct {
	Kind farmdata.Kind `json:"kind"`
	File string        `json:"file,omitempty"`
	// Byte and Record say where; nil if unknown.
	Byte   *int64 `json:"byte,omitempty"`
	Record *int64 `json:"record,omitempty"`
	// Text says all of it in a sentence.
	Text string `json:"text"`
}

func finding(f *farmdata.Finding) Finding {
	out := Finding{Kind: f.Kind, File: f.File, Text: f.Error()}
	if f.Offset >= 0 {
		out.Byte = &f.Offset
	}
	if f.Record >= 0 {
		out.Record = &f.Record
	}
	return out
}

// mostNoted is how many bytes the findings of logs and grids take in a summary: each log has as many as its reader tells, and little data
// many logs.
const mostNoted = 8 << 20

// notes takes the findings of logs and grids.
type notes struct{ left int64 }

// add takes what a stream yields instead of a record. Any other error, which streams do not yield, is returned.
func (n *notes) add(list *[]Finding, err error) error {
	const each = 512 // beside its text
	const noRoom = "more findings of logs and grids than a summary has room for"
	var found *farmdata.Finding
	if !errors.As(err, &found) {
		return err
	}
	if n.left < 0 {
		if last := len(*list) - 1; last >= 0 && (*list)[last].Text == string(farmdata.KindLimit)+": "+noRoom {
			return nil
		}
		found = &farmdata.Finding{Kind: farmdata.KindLimit, Offset: -1, Record: -1, Detail: noRoom}
	}
	f := finding(found)
	n.left -= each + int64(len(f.Text))
	*list = append(*list, f)
	return nil
}

func findings(list []*farmdata.Finding) []Finding {
	out := make([]Finding, 0, len(list))
	for _, f := range list {
		out = append(out, finding(f))
	}
	return out
}

// Summarize reads all logs and grids of the data once. The error is that of ctx, with what was read until
// then; what cannot be read is a finding.
func Summarize(ctx context.Context, data *Data) (*Summary, error) {
	s := &Summary{Form: data.Form, Sets: make([]Set, 0, len(data.Sets)), More: findings(data.Findings)}
	blocks, noted := maxBlocks, &notes{mostNoted}
	for _, set := range data.Sets {
		summary := summarizeSet(set)
		err := summary.readLogs(ctx, set, data.devices, noted)
		if err == nil {
			err = summary.prescriptions(ctx, set, &blocks, noted)
		}
		shorten(reflect.ValueOf(&summary).Elem())
		s.Sets = append(s.Sets, summary)
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

// shorten cuts every ID and name in a value: a long one may stand at each log, value and total.
func shorten(v reflect.Value) {
	const most = 200 // characters
	switch v.Kind() {
	case reflect.Struct:
		if _, told := v.Interface().(Finding); !told {
			for i := range v.NumField() {
				if field := v.Field(i); field.CanSet() {
					shorten(field)
				}
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			shorten(v.Index(i))
		}
	case reflect.Map:
		for _, element := range v.Seq2() {
			shorten(element)
		}
	case reflect.String:
		if runes := []rune(v.String()[:min(v.Len(), 4*most+1)]); len(runes) > most { // of at most 4 bytes
			v.SetString(string(runes[:most-1]) + "…")
		}
	}
}

func summarizeSet(set *farmdata.Set) Set {
	s := Set{
		Path: set.Path, Software: join(set.Software, set.SoftwareVersion), Controller: join(set.Controller, set.ControllerVersion),
		Tasks: []Task{}, Devices: []Device{}, Customers: []Named{}, Farms: []Named{}, Fields: []Field{}, Products: []Named{}, Logs: []Log{}, Grids: []Grid{}, Zones: []Zone{},
		Findings: findings(set.Findings),
	}
	if set.Major != 0 {
		s.Version = fmt.Sprintf("%d.%d", set.Major, set.Minor)
	}
	for _, task := range set.Tasks {
		t := Task{
			Named: Named{task.ID, task.Designator}, Status: status(task.Status), Customer: task.CustomerID, Farm: task.FarmID, Field: task.FieldID,
			Worker: task.WorkerID, Logs: append([]string{}, task.LogNames...),
		}
		s.Tasks = append(s.Tasks, t)
	}
	for _, d := range set.Devices {
		s.Devices = append(s.Devices, Device{Named{d.ID, d.Designator}, d.Name, d.SoftwareVersion, d.SerialNumber, len(d.Elements)})
	}
	for _, c := range set.Customers {
		s.Customers = append(s.Customers, Named{c.ID, join(c.FirstName, c.LastName)})
	}
	for _, f := range set.Farms {
		s.Farms = append(s.Farms, Named{f.ID, f.Designator})
	}
	for _, p := range set.Products {
		s.Products = append(s.Products, Named{p.ID, p.Designator})
	}
	for _, field := range set.Fields {
		f := Field{Named: Named{field.ID, field.Designator}, Area: field.Area, Customer: field.CustomerID, Farm: field.FarmID}
		for _, polygon := range field.Polygons {
			s.outlines = append(s.outlines, area{rings: outlines(polygon, &f.Box)})
		}
		s.Fields = append(s.Fields, f)
	}
	return s
}

func join(parts ...string) string { return strings.TrimSpace(strings.Join(parts, " ")) }

func status(n int) string {
	return map[int]string{1: "planned", 2: "running", 3: "paused", 4: "completed", 5: "template", 6: "canceled"}[n]
}

func summarizeLog(ctx context.Context, log *farmdata.Log, meter *meter, noted *notes) (Log, *track, error) {
	l := Log{Name: log.Name, Task: log.TaskID, Bytes: log.Size, Columns: []Column{}, Findings: []Finding{}}
	t := &track{name: log.Name}
	stats := newStatistics(log, meter)
	recorded := *log // Values is without those of the header
	recorded.Records = func(yield func(*farmdata.Record, error) bool) {
		for record, err := range log.Records {
			if err == nil {
				l.Values += int64(len(record.Values))
			}
			if !yield(record, err) {
				return
			}
		}
	}
	for record, err := range recorded.WithConstants() {
		if err != nil {
			if err := noted.add(&l.Findings, err); err != nil {
				return l, t, err
			}
			continue
		}
		if l.Records++; l.Records%256 == 0 && ctx.Err() != nil {
			break
		}
		meter.step(record)
		if !record.Stamp.IsZero() {
			if l.Start.IsZero() {
				l.Start = record.Stamp
			}
			l.End = record.Stamp
		}
		if record.Position.Valid() {
			at := latLon{record.Position.North, record.Position.East}
			l.Positions++
			l.Box = l.Box.add(at)
			t.add(at, record.Stamp)
		}
		for i, v := range record.Values {
			stats.add(i, v)
		}
	}
	l.Columns = stats.summary()
	return l, t, ctx.Err()
}

// statistics are those of the columns of a log, in the order in which they first came.
type statistics struct {
	meter *meter
	list  []statistic
	index columns.Memo[int]
}

type statistic struct {
	column   *farmdata.Column
	gauge    *gauge // nil: nothing follows the values
	count    int64
	min, max float64
}

func newStatistics(log *farmdata.Log, meter *meter) *statistics {
	s := &statistics{meter: meter}
	s.index.Make = s.make
	for i := range log.Columns {
		s.index.Of(&log.Columns[i])
	}
	return s
}

func (s *statistics) make(c *farmdata.Column) int {
	s.list = append(s.list, newStatistic(c))
	s.list[len(s.list)-1].gauge = s.meter.gauge(c)
	return len(s.list) - 1
}

func newStatistic(c *farmdata.Column) statistic {
	return statistic{column: c, min: math.Inf(1), max: math.Inf(-1)}
}

// add counts the value at a place of a record.
func (s *statistics) add(place int, v farmdata.Value) {
	at := &s.list[s.index.At(place, v.Column)]
	at.add(v)
	if at.gauge != nil {
		at.gauge.set(v)
	}
}

func (s *statistics) summary() []Column {
	out := make([]Column, 0, len(s.list))
	for i := range s.list {
		out = append(out, s.list[i].summary())
	}
	return out
}

func (s *statistic) summary() Column {
	c := Column{DDI: s.column.DDI.String(), Name: s.column.Name, Element: s.column.ElementID, Device: s.column.Device, Unit: s.column.Unit, Count: s.count}
	if s.min <= s.max {
		c.Min, c.Max = s.min, s.max
	}
	return c
}

// add counts a value, and returns it in the unit of its column.
func (s *statistic) add(v farmdata.Value) (scaled float64) {
	s.count++
	if scaled = v.Scaled(); !math.IsNaN(scaled) && !math.IsInf(scaled, 0) {
		s.min, s.max = min(s.min, scaled), max(s.max, scaled)
	}
	return scaled
}

// Line says in one line what is in the data, without any content of it but times.
func (s *Summary) Line() string {
	var tasks, devices, fields, logs, grids, zones, found int
	var records, values int64
	var first, last farmdata.Stamp
	version := ""
	found = len(s.More)
	for _, set := range s.Sets {
		if version == "" && set.Version != "" {
			version = " " + set.Version
		}
		tasks, devices, fields = tasks+len(set.Tasks), devices+len(set.Devices), fields+len(set.Fields)
		logs, grids, zones, found = logs+len(set.Logs), grids+len(set.Grids), zones+len(set.Zones), found+len(set.Findings)
		for _, log := range set.Logs {
			records, values, found = records+log.Records, values+log.Values, found+len(log.Findings)
			if at := log.Start; !at.IsZero() && (first.IsZero() || compare(at, first) < 0) {
				first = at
			}
			if at := log.End; !at.IsZero() && (last.IsZero() || compare(at, last) >= 0) {
				last = at
			}
		}
		for _, grid := range set.Grids {
			found += len(grid.Findings)
		}
	}
	parts := []string{}
	add := func(n int64, noun string) {
		switch n {
		case 0:
		case 1:
			parts = append(parts, "1 "+noun)
		default:
			parts = append(parts, fmt.Sprintf("%d %ss", n, noun))
		}
	}
	add(int64(tasks), "task")
	add(int64(devices), "device")
	add(int64(fields), "field")
	add(int64(grids), "grid")
	add(int64(zones), "zone")
	add(int64(logs), "log")
	add(records, "record")
	add(values, "value")
	if !first.IsZero() {
		parts = append(parts, seconds(first)+" to "+seconds(last))
	}
	add(int64(found), "finding")
	if len(parts) == 0 {
		parts = append(parts, "nothing")
	}
	return string(s.Form) + version + ": " + strings.Join(parts, ", ")
}

func compare(a, b farmdata.Stamp) int {
	x, _ := a.Time()
	y, _ := b.Time()
	return x.Compare(y)
}

// seconds formats a time without fractions.
func seconds(s farmdata.Stamp) string {
	s.Wall, s.UTC = s.Wall.Truncate(time.Second), s.UTC.Truncate(time.Second)
	return s.String()
}
