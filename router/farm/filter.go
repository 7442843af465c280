package farm

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/internal/wildcard"
	"github.com/agrimill/agrimill/router"
)

// Values of [FilterConfig.Unreadable].
const (
	UnreadableNoMatch = "no_match"
	UnreadableMatch   = "match"
)

// FilterConfig selects messages by what is in their payload. A payload must match every
// field that is set, each with anything that is in it; a field with several values matches if one of
// them does. In names and IDs, * matches any characters, including none, and ? exactly one; case
// does not matter.
type FilterConfig struct {
	// Machine lists NAMEs (16 hexadecimal digits) or designators of devices, e.g.
	// a00086000d*.
	Machine []string `yaml:"machine"`
	// Task lists IDs or designators of tasks.
	Task []string `yaml:"task"`
	// Field lists IDs or designators of fields.
	Field []string `yaml:"field"`
	// Farm lists IDs or designators of farms.
	Farm []string `yaml:"farm"`
	// Customer lists IDs or names (last, or first and last) of customers.
	Customer []string `yaml:"customer"`
	// DDI lists data dictionary identifiers (up to four hexadecimal digits) that have a value. It may be in a log, a
	// total, a prescription or a product allocation.
	DDI []string `yaml:"ddi"`
	// From is the beginning of the time span of a record or task, e.g. 2026-05-04T00:00:00Z.
	// Without an offset it is compared with the local time of the machine, which is all that a
	// binary log may have; with one, such a local time counts as UTC. Empty means no
	// beginning.
	From string `yaml:"from"`
	// To is the end of the span, exclusive. Empty means no end.
	To string `yaml:"to"`
	// Box is where a record, a field or a grid must be.
	Box *Box `yaml:"box"`
	// Unreadable is what a payload counts as that cannot be read far enough to decide. Such a message is never
	// poisoned for that.
	Unreadable string `yaml:"unreadable" enum:"no_match,match"`

	ReadConfig `yaml:",inline"`
}

// Box is a part of the Earth, in degrees of WGS 84. Where West is greater than East, it goes
// across the 180th meridian.
type Box struct {
	// South is the latitude of this edge.
	South float64 `yaml:"south" required:"true"`
	// West is the longitude of this edge.
	West float64 `yaml:"west" required:"true"`
	// North is the latitude of this edge.
	North float64 `yaml:"north" required:"true"`
	// East is the longitude of this edge.
	East float64 `yaml:"east" required:"true"`
}

// WithDefaults returns the configuration with its defaults.
func (c FilterConfig) WithDefaults() FilterConfig {
	c.ReadConfig = c.ReadConfig.WithDefaults()
	if c.Unreadable == "" {
		c.Unreadable = UnreadableNoMatch
	}
	return c
}

// Validate reports every field with an invalid value; the error matches [ErrConfig].
func (c FilterConfig) Validate() error {
	var e validate.Errors
	for path, list := range map[string][]string{"Machine": c.Machine, "Task": c.Task, "Field": c.Field, "Farm": c.Farm, "Customer": c.Customer} {
		e.Check(!slices.Contains(list, ""), path, "must not have an empty value")
	}
	for _, text := range c.DDI {
		_, err := farmdata.ParseDDI(text)
		e.Check(err == nil, "DDI", "must have up to four hexadecimal digits")
	}
	from, err := farmdata.ParseStamp(c.From)
	e.Check(err == nil, "From", "must be a time such as 2026-05-04T00:00:00Z")
	to, toErr := farmdata.ParseStamp(c.To)
	e.Check(toErr == nil, "To", "must be a time such as 2026-05-04T00:00:00Z")
	if err == nil && toErr == nil && !from.IsZero() && !to.IsZero() {
		e.Check(from.Local == to.Local, "To", "must have an offset if %s has one, and none otherwise", validate.Field("From"))
		e.Check(from.Wall.Before(to.Wall), "To", "must be after %s", validate.Field("From"))
	}
	if b := c.Box; b != nil {
		e.Check(b.South >= -90 && b.South <= b.North && b.North <= 90, "Box.South", "must be at least -90 and at most %s, which is at most 90", validate.Field("Box.North"))
		e.Check(b.West >= -180 && b.West <= 180, "Box.West", "must be from -180 to 180")
		e.Check(b.East >= -180 && b.East <= 180, "Box.East", "must be from -180 to 180")
	}
	e.Check(c.Unreadable == "" || c.Unreadable == UnreadableMatch || c.Unreadable == UnreadableNoMatch, "Unreadable", "must be %s or %s", UnreadableNoMatch, UnreadableMatch)
	e.Join("", c.ReadConfig.Validate())
	return e.Err(ErrConfig)
}

// Filter accepts the messages that a FilterConfig selects. It is safe for concurrent use;
// at most GOMAXPROCS payloads are read at a time.
type Filter struct {
	reader          *reader
	matchUnreadable bool

	machine, task, field, farm, customer wildcard.Patterns
	ddi                                  []farmdata.DDI
	from, to                             farmdata.Stamp
	box                                  *Box
}

// NewFilter returns a filter. The error matches [ErrConfig].
func NewFilter(config FilterConfig) (*Filter, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	f := &Filter{
		reader: newReader(config.ReadConfig), matchUnreadable: config.Unreadable == UnreadableMatch,
		machine: wildcard.New("i", config.Machine...), task: wildcard.New("i", config.Task...), field: wildcard.New("i", config.Field...),
		farm: wildcard.New("i", config.Farm...), customer: wildcard.New("i", config.Customer...), box: config.Box,
	}
	for _, text := range config.DDI {
		ddi, _ := farmdata.ParseDDI(text) // Validate has seen them
		f.ddi = append(f.ddi, ddi)
	}
	f.from, _ = farmdata.ParseStamp(config.From)
	f.to, _ = farmdata.ParseStamp(config.To)
	return f, nil
}

// decision is what became of one payload.
type decision struct {
	match  bool
	reason string // why the payload could not be read, or not far enough; empty otherwise
}

// Select reports whether the route accepts the message: use it as [router.Route.Filter]. Under a Router it reads
// the payload once for a message, however often that is retried. The error is one of getting a payload that
// is elsewhere; a payload that cannot be read is none.
func (f *Filter) Select(msg *message.Message) (bool, error) {
	d, err := f.decide(msg)
	return d.match, err
}

func (f *Filter) decide(msg *message.Message) (decision, error) {
	return router.Once(msg, f, func() (d decision, err error) {
		err = f.reader.use(msg, func(ctx context.Context, o opened) (err error) {
			d, err = f.look(ctx, o.data)
			return err
		})
		var not *unreadable
		if errors.As(err, &not) {
			d, err = decision{reason: not.reason}, nil
		}
		if err == nil && d.reason != "" {
			d.match = f.matchUnreadable
		}
		return d, err
	})
}

// Middleware notes [KeyReadable] and [KeyReason] on what a route makes of a message that was accepted although
// its payload could not be read. Use it in [router.Route.Middleware] of the route whose Filter is Select.
func (f *Filter) Middleware(next message.HandlerFunc) message.HandlerFunc {
	if !f.matchUnreadable {
		return next
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		out, err := next(msg)
		if err != nil || len(out) == 0 {
			return out, err
		}
		d, err := f.decide(msg) // remembered
		if err != nil {
			return nil, err
		}
		if d.reason != "" {
			mark(out, ReadableNo, d.reason)
		}
		return out, nil
	}
}

// wanted is what is still to be found in a payload.
type wanted struct {
	machine, task, field, farm, customer bool // in what is small
	ddi, span, box                       bool // in logs, too
}

func (w *wanted) header() bool { return w.machine || w.task || w.field || w.farm || w.customer }
func (w *wanted) logs() bool   { return w.ddi || w.span || w.box }

// look decides by what is in the data. The error is that of ctx.
func (f *Filter) look(ctx context.Context, data *content.Data) (decision, error) {
	w := &wanted{
		machine: len(f.machine) > 0, task: len(f.task) > 0, field: len(f.field) > 0, farm: len(f.farm) > 0, customer: len(f.customer) > 0,
		ddi: len(f.ddi) > 0, span: !f.from.IsZero() || !f.to.IsZero(), box: f.box != nil,
	}
	for _, set := range data.Sets {
		f.lookAtSet(w, set)
	}
	var l losses
	lose := func(finding *farmdata.Finding) { l.add(w, finding) }
	for _, set := range data.Sets {
		if w.header() {
			break // no log will help
		}
		for _, log := range set.Logs {
			if err := f.lookAtLog(ctx, w, log, lose); err != nil {
				return decision{}, err
			}
			if !w.logs() {
				break
			}
		}
	}
	if !w.header() && !w.logs() {
		return decision{match: true}, nil
	}
	for _, finding := range data.Findings {
		lose(finding)
	}
	for _, set := range data.Sets {
		for _, finding := range set.Findings {
			if finding.Kind != farmdata.KindUnsupported { // what is beside the model has nothing that a filter looks for
				lose(finding)
			}
		}
	}
	if l.hide(w) {
		return decision{reason: l.first.Error()}, nil
	}
	return decision{}, ctx.Err()
}

// losses are what could not be read.
type losses struct {
	first *farmdata.Finding // of those that matter
	may   wanted            // have been found there
}

// add notes what could have been found, had it been read. A value that cannot be read is none of the texts by which machines, tasks,
// fields, farms and customers are found, and neither is anything in the file of a log or grid.
func (l *losses) add(w *wanted, finding *farmdata.Finding) {
	kind := finding.Kind
	part := kind.Unread() || kind == farmdata.KindUnsupported
	value := part || kind == farmdata.KindValue
	header := part && !strings.HasSuffix(strings.ToLower(finding.File), ".bin")
	span, box := value || kind == farmdata.KindTime, value || kind == farmdata.KindPosition
	if l.first == nil && (header && w.header() || value && w.ddi || span && w.span || box && w.box) {
		l.first = finding
	}
	l.may.machine = l.may.machine || header // and each other one in what is small
	l.may.ddi, l.may.span, l.may.box = l.may.ddi || value, l.may.span || span, l.may.box || box
}

// hide reports whether each that is still wanted may be in what could not be read. Otherwise there is one that is not in the payload.
func (l *losses) hide(w *wanted) bool {
	return l.first != nil && (!w.header() || l.may.machine) && (!w.ddi || l.may.ddi) && (!w.span || l.may.span) && (!w.box || l.may.box)
}

func (f *Filter) lookAtSet(w *wanted, set *farmdata.Set) {
	for _, m := range set.Machines() {
		w.machine = w.machine && !matches(f.machine, append(m.Names, m.Designator)...)
	}
	if w.ddi {
		for m := range set.Mentions(f.ddi...) {
			switch m.Place {
			case farmdata.PlaceTotal, farmdata.PlaceAllocation:
				w.ddi = false
			default: // a description has no value, a zone may lack it, and the header of a log may have what no record has
			}
		}
	}
	for _, t := range set.Tasks {
		w.task = w.task && !matches(f.task, t.ID, t.Designator)
		f.lookAtTask(w, &t)
	}
	for _, field := range set.Fields {
		w.field = w.field && !matches(f.field, field.ID, field.Designator)
		f.lookAtPolygons(w, field.Polygons)
	}
	for _, farm := range set.Farms {
		w.farm = w.farm && !matches(f.farm, farm.ID, farm.Designator)
	}
	for _, c := range set.Customers {
		w.customer = w.customer && !matches(f.customer, c.ID, c.LastName, strings.TrimSpace(c.FirstName+" "+c.LastName))
	}
}

func (f *Filter) lookAtPolygons(w *wanted, polygons []farmdata.Polygon) {
	for _, polygon := range polygons {
		if !w.box {
			return
		}
		var north, east, around []float64 // around are longitudes of 0 to 360
		for _, ring := range polygon.Rings {
			for _, p := range ring.Points {
				if !p.Valid() {
					continue
				}
				if north, east = append(north, p.North), append(east, p.East); p.East < 0 {
					p.East += 360
				}
				around = append(around, p.East)
			}
		}
		if len(north) == 0 {
			continue
		}
		box := content.Box{South: slices.Min(north), West: slices.Min(east), North: slices.Max(north), East: slices.Max(east)}
		if box.East-box.West > 180 { // no field is that wide
			box.West, box.East = slices.Min(around), slices.Max(around)-360
		}
		w.box = !f.box.meets(box)
	}
}

func (f *Filter) lookAtTask(w *wanted, t *farmdata.Task) {
	for _, at := range t.Times {
		start, stop := at.Start, at.Stop
		switch {
		case stop.IsZero():
			stop = start
			stop.Wall = stop.Wall.Add(at.Duration)
		case start.IsZero():
			start = stop
			start.Wall = start.Wall.Add(-at.Duration)
		}
		// The span of the task and the one that is wanted have a moment in common.
		w.span = w.span && (start.IsZero() || !f.to.IsZero() && !before(start, f.to) || !f.from.IsZero() && before(stop, f.from))
		for _, p := range at.Positions {
			w.box = w.box && !(p.Valid() && f.box.meets(content.Box{South: p.North, West: p.East, North: p.North, East: p.East}))
		}
	}
	cells := map[int]bool{} // codes of zones whose values the cells of a grid have
	for _, grid := range t.Grids {
		cells[grid.Zone] = cells[grid.Zone] || grid.Type == 2
		north, east := grid.Corner(grid.Rows, grid.Cols)
		w.box = w.box && !(grid.Valid() && f.box.meets(content.Box{South: grid.North, West: grid.East, North: north, East: east}))
	}
	for _, zone := range t.Zones {
		f.lookAtPolygons(w, zone.Polygons)
		w.ddi = w.ddi && !slices.ContainsFunc(zone.Values, func(v farmdata.ZoneValue) bool {
			return (!v.Missing || cells[zone.Code]) && slices.Contains(f.ddi, v.DDI)
		})
	}
}

// lookAtLog reads a log until everything is found. The error is that of ctx.
func (f *Filter) lookAtLog(ctx context.Context, w *wanted, log *farmdata.Log, lose func(*farmdata.Finding)) error {
	if !w.logs() {
		return nil
	}
	may := len(log.Columns) == 0 || slices.ContainsFunc(log.Columns, func(c farmdata.Column) bool { return slices.Contains(f.ddi, c.DDI) }) // EFDI has no header
	var finding *farmdata.Finding
	for record, err := range bounded(ctx, log.WithConstants(), nil) {
		if errors.As(err, &finding) {
			lose(finding)
			continue
		}
		if err != nil {
			return err
		}
		if w.span && !record.Stamp.IsZero() {
			w.span = !f.from.IsZero() && before(record.Stamp, f.from) || !f.to.IsZero() && !before(record.Stamp, f.to)
		}
		if w.box && record.Position.Valid() {
			p := record.Position
			w.box = !f.box.meets(content.Box{South: p.North, West: p.East, North: p.North, East: p.East})
		}
		if w.ddi && may {
			w.ddi = !slices.ContainsFunc(record.Values, func(v farmdata.Value) bool { return slices.Contains(f.ddi, v.Column.DDI) })
		}
		if !w.logs() {
			return nil
		}
	}
	return nil
}

// before compares a time of the data with one of the span. One that is local is
// compared with what the machine's clock showed.
func before(a, b farmdata.Stamp) bool {
	at, _ := a.Time()
	if b.Local && !a.Wall.IsZero() {
		_, offset := a.Wall.Zone() // which a time of a task may have
		at = a.Wall.Add(time.Duration(offset) * time.Second)
	}
	return at.Before(b.Wall)
}

// meets reports whether two boxes have a place in common. Both may go across the 180th meridian.
func (b *Box) meets(other content.Box) bool {
	if other.West > other.East {
		west, east := other, other
		west.East, east.West = 180, -180
		return b.meets(west) || b.meets(east)
	}
	if other.North < b.South || other.South > b.North {
		return false
	}
	if b.West <= b.East {
		return other.East >= b.West && other.West <= b.East
	}
	return other.East >= b.West || other.West <= b.East
}

// matches reports whether one of the texts that are there matches one of the patterns.
func matches(patterns wildcard.Patterns, texts ...string) bool {
	return slices.ContainsFunc(texts, func(text string) bool { return text != "" && patterns.Match(text) })
}
