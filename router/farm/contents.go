package farm

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/router"
)

// Contents is what is in the payload of a message, for expressions. Lists have each text once, in the order of
// the data, and none that is empty.
type Contents struct {
	// Readable is false for a payload that is no farm data, or that could not be read; Reason says why then, and of a
	// readable one what part could not be read.
	Readable bool   `cel:"readable"`
	Reason   string `cel:"reason"`
	// Form is TaskData, EFDI TaskData, EFDI time log or EFDI positions.
	Form string `cel:"form"`
	// Machines are the NAMEs and designators of devices, the others the IDs and names of what
	// they are.
	Machines  []string `cel:"machines"`
	Tasks     []string `cel:"tasks"`
	Fields    []string `cel:"fields"`
	Farms     []string `cel:"farms"`
	Customers []string `cel:"customers"`
	// DDIs are those of the values in logs, four hexadecimal digits each.
	DDIs []string `cel:"ddis"`
	// Records is how many records the logs have.
	Records int64 `cel:"records"`
	// Start and End are the times of the first and the last record; zero without any. Local time of a
	// machine counts as UTC.
	Start time.Time `cel:"start"`
	End   time.Time `cel:"end"`
	// Located says whether a record, field, grid or treatment zone has a place. South, West, North and East, in
	// degrees, are where they all are; 0 without any.
	Located bool    `cel:"located"`
	South   float64 `cel:"south"`
	West    float64 `cel:"west"`
	North   float64 `cel:"north"`
	East    float64 `cel:"east"`
}

// Inspector tells what is in payloads. It is safe for concurrent use; at most GOMAXPROCS
// payloads are read at a time.
type Inspector struct{ reader *reader }

// NewInspector returns an inspector. The error matches [ErrConfig].
func NewInspector(config ReadConfig) (*Inspector, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &Inspector{newReader(config)}, nil
}

// ErrUnreadable is matched by the error of a payload that is no farm data, or that cannot be read.
var ErrUnreadable = errors.New("the payload is not readable")

// Summarize reads the payload of a message, all of it, and returns what is in it. The error matches [ErrUnreadable], or
// is one of getting a payload that is elsewhere.
func (i *Inspector) Summarize(msg *message.Message) (summary *content.Summary, err error) {
	err = i.reader.use(msg, func(ctx context.Context, o opened) (err error) {
		summary, err = summarize(ctx, o.data)
		return err
	})
	if err != nil {
		return nil, err
	}
	return summary, nil
}

// summarize returns a summary that can be written: in memory, data have one long name once, whatever has it.
func summarize(ctx context.Context, data *content.Data) (*content.Summary, error) {
	summary, err := content.Summarize(ctx, data)
	if err == nil && texts(reflect.ValueOf(summary)) > DefaultMaxOutput {
		err = &unreadable{fmt.Sprintf("limit: its summary would take more than %d bytes", DefaultMaxOutput)}
	}
	return summary, err
}

// texts is how many bytes the texts of a value take together.
func texts(v reflect.Value) (bytes int64) {
	switch v.Kind() {
	case reflect.String:
		return int64(v.Len())
	case reflect.Pointer:
		if !v.IsNil() {
			return texts(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			bytes += texts(v.Index(i))
		}
	case reflect.Map:
		for _, element := range v.Seq2() {
			bytes += texts(element)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				bytes += texts(v.Field(i))
			}
		}
	}
	return bytes
}

// Contents reads the payload of a message, all of it. Under a Router it does so once for a message, however often
// that is retried or asked for. The error is one of getting a payload that is elsewhere; one that cannot be
// read is none. The result must not be modified.
func (i *Inspector) Contents(msg *message.Message) (*Contents, error) {
	return router.Once(msg, i, func() (*Contents, error) {
		summary, err := i.Summarize(msg)
		var not *unreadable
		switch {
		case errors.As(err, &not):
			return &Contents{Reason: clean(not.reason)}, nil
		case err != nil:
			return nil, err
		}
		return contents(summary), nil
	})
}

func contents(s *content.Summary) *Contents {
	c := &Contents{Readable: true, Reason: clean(unread(s)), Form: string(s.Form)}
	type entry struct {
		in   *[]string
		text string
	}
	known := map[entry]bool{}
	add := func(list *[]string, texts ...string) {
		for _, text := range texts {
			if e := (entry{list, text}); text != "" && !known[e] {
				known[e] = true
				*list = append(*list, text)
			}
		}
	}
	place := func(b *content.Box) {
		switch {
		case b == nil:
		case !c.Located:
			c.Located, c.South, c.West, c.North, c.East = true, b.South, b.West, b.North, b.East
		default:
			c.South, c.West, c.North, c.East = min(c.South, b.South), min(c.West, b.West), max(c.North, b.North), max(c.East, b.East)
		}
	}
	for _, set := range s.Sets {
		for _, d := range set.Devices {
			add(&c.Machines, d.NAME, d.Name)
		}
		for _, t := range set.Tasks {
			add(&c.Tasks, t.ID, t.Name)
		}
		for _, f := range set.Fields {
			add(&c.Fields, f.ID, f.Name)
			place(f.Box)
		}
		for _, f := range set.Farms {
			add(&c.Farms, f.ID, f.Name)
		}
		for _, customer := range set.Customers {
			add(&c.Customers, customer.ID, customer.Name)
		}
		for _, g := range set.Grids {
			place(g.Box)
		}
		for _, z := range set.Zones {
			place(z.Box)
		}
		for _, log := range set.Logs {
			c.Records += log.Records
			place(log.Box)
			for _, column := range log.Columns {
				if column.Count > 0 {
					add(&c.DDIs, column.DDI)
				}
			}
			if at, _ := log.Start.Time(); !log.Start.IsZero() && (c.Start.IsZero() || at.Before(c.Start)) {
				c.Start = at
			}
			if at, _ := log.End.Time(); !log.End.IsZero() && at.After(c.End) {
				c.End = at
			}
		}
	}
	return c
}

// unread returns the first finding of a summary by which a part could not be read; empty without one.
func unread(s *content.Summary) string {
	lists := [][]content.Finding{s.More}
	for _, set := range s.Sets {
		lists = append(lists, set.Findings)
		for _, log := range set.Logs {
			lists = append(lists, log.Findings)
		}
		for _, grid := range set.Grids {
			lists = append(lists, grid.Findings)
		}
	}
	for _, finding := range slices.Concat(lists...) {
		if finding.Kind.Unread() {
			return finding.Text
		}
	}
	return ""
}
