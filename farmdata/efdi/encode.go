package efdi

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
)

// EncodeConfig says how data becomes EFDI.
type EncodeConfig struct {
	// Location is where local times are from: the times of EFDI are instants. Nil means UTC. Of an
	// hour that clocks show twice, because they are put back, the one near the UTC of the receiver is meant, or else the
	// first one. What they skip counts on from before.
	Location *time.Location
	// Finding is called for each finding of a log while it is read, by the goroutine that writes
	// it. Nil ignores findings.
	Finding func(*farmdata.Finding)
}

// Numbers of the fields of TimeLog.
const (
	timeLogFilename protowire.Number = 2
	timeLogEntry    protowire.Number = 4
)

// WriteTimeLog writes a log as a bare TimeLog, record by record, with the constants of the log in
// each of them that has no such value of its own. The error is that of w.
//
// Zero and absent are the same in EFDI: what a position lacks is zero, except that a status it lacks is 15, unknown. A
// latitude without a longitude, or the other way around, is left out.
func WriteTimeLog(w io.Writer, log *farmdata.Log, cfg EncodeConfig) error {
	out := bufio.NewWriter(w)
	_, _ = out.Write(filename(log)) // Flush has the error
	for entry, err := range cfg.entries(log) {
		if err != nil {
			return err
		}
		if _, err := out.Write(entry); err != nil {
			return fmt.Errorf("efdi: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("efdi: %w", err)
	}
	return nil
}

// TimeLogs makes bare TimeLog messages of a log, in the order of its records: each is at most size bytes,
// unless one record takes more, which has a message of its own then. Each has the name of the log, and its constants in every record. A log
// without records makes none. The messages belong to the caller. After an error nothing follows; findings are no errors.
func TimeLogs(log *farmdata.Log, size int, cfg EncodeConfig) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		head := filename(log)
		part := slices.Clone(head)
		for entry, err := range cfg.entries(log) {
			if err != nil {
				yield(nil, err)
				return
			}
			if len(part) > len(head) && len(part)+len(entry) > size {
				if !yield(part, nil) {
					return
				}
				part = slices.Clone(head)
			}
			part = append(part, entry...)
		}
		if len(part) > len(head) {
			yield(part, nil)
		}
	}
}

// filename is the beginning of a TimeLog: the name of its log.
func filename(log *farmdata.Log) []byte {
	if log.Name == "" {
		return nil
	}
	return protowire.AppendString(protowire.AppendTag(nil, timeLogFilename, protowire.BytesType), valid(log.Name))
}

// entries yields the records of a log as fields of a TimeLog, each valid until the next one.
func (c EncodeConfig) entries(log *farmdata.Log) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		var b []byte
		encode := proto.MarshalOptions{Deterministic: true}
		for record, err := range log.WithConstants() {
			if err != nil {
				var finding *farmdata.Finding
				if !errors.As(err, &finding) { // streams yield findings only
					yield(nil, fmt.Errorf("efdi: %w", err))
					return
				}
				if c.Finding != nil {
					c.Finding(finding)
				}
				continue
			}
			message, err := encode.Marshal(c.entry(record))
			if err != nil {
				yield(nil, fmt.Errorf("efdi: %w", err))
				return
			}
			b = protowire.AppendBytes(protowire.AppendTag(b[:0], timeLogEntry, protowire.BytesType), message)
			if !yield(b, nil) {
				return
			}
		}
	}
}

func (c EncodeConfig) entry(record *farmdata.Record) *efdipb.Time {
	const effective = 4
	t := &efdipb.Time{Start: c.instant(record.Stamp), Type: effective}
	if record.Position.Has != 0 || !record.Stamp.UTC.IsZero() {
		t.PositionStart = encodePosition(&record.Position)
		if !record.Stamp.UTC.IsZero() {
			t.PositionStart.GpsUtc = timestamppb.New(record.Stamp.UTC)
		}
	}
	for _, v := range record.Values {
		t.DataLogValue = append(t.DataLogValue, &efdipb.DataLogValue{
			Ddi: uint32(v.Column.DDI), Value: v.Raw, DeviceElement: uid("DET", v.Column.ElementID),
			Pgn: uint64(v.Column.PGN), PgnStartBit: uint32(v.Column.StartBit), PgnStopBit: uint32(v.Column.StopBit),
		})
	}
	return t
}

// instant returns nil for an unknown time. The machine's clock says when a record was made; UTC
// of the receiver stands beside it.
func (c EncodeConfig) instant(s farmdata.Stamp) *timestamppb.Timestamp {
	t := s.Wall
	switch {
	case s.Wall.IsZero() && s.UTC.IsZero():
		return nil
	case s.Wall.IsZero():
		t = s.UTC
	case s.Local && c.Location != nil:
		t = c.local(s)
	}
	return timestamppb.New(t)
}

// local returns when clocks at Location show the local time of s. Of an hour that they show twice, time.Date means either, which
// one depends on the zone.
func (c EncodeConfig) local(s farmdata.Stamp) time.Time {
	const day = 24 * time.Hour
	offset := func(t time.Time) time.Duration {
		_, seconds := t.In(c.Location).Zone()
		return time.Duration(seconds) * time.Second
	}
	before, after := offset(s.Wall.Add(-day)), offset(s.Wall.Add(day))
	first, second := s.Wall.Add(-before), s.Wall.Add(-after)
	switch {
	case before == after || offset(second) != after:
		return first
	case offset(first) != before:
		return second
	case !s.UTC.IsZero() && s.UTC.Sub(first).Abs() > s.UTC.Sub(second).Abs():
		return second
	}
	return first
}

func encodePosition(p *farmdata.Position) *efdipb.Position {
	const unknown = 15
	out := &efdipb.Position{Up: p.Up, Status: int32(p.Status), Pdop: p.PDOP, Hdop: p.HDOP, Satellites: uint32(max(p.Satellites, 0))}
	if place := farmdata.HasNorth | farmdata.HasEast; p.Has&place == place { // half of it would be a place elsewhere
		out.North, out.East = p.North, p.East
	}
	if p.Has&farmdata.HasStatus == 0 { // zero would be: no GPS
		out.Status = unknown
	}
	return out
}

// MarshalTaskData returns a set as a bare ISO11783_TaskData, without its logs, which are messages of
// their own. EFDI has no room for lists of links, for more than one operation or grid of a task or the cells of
// a grid, and for more than one line of a guidance pattern: they are left out. So are names and labels of
// devices that are not hexadecimal. Negative object IDs are zero.
func MarshalTaskData(set *farmdata.Set, cfg EncodeConfig) ([]byte, error) {
	d := &efdipb.TaskData{
		VersionMajor: int32(set.Major), VersionMinor: uint32(max(set.Minor, 0)), Software: valid(set.Software), SoftwareVersion: valid(set.SoftwareVersion),
		Controller: valid(set.Controller), ControllerVersion: valid(set.ControllerVersion), Origin: int32(set.Origin),
	}
	for _, v := range set.Devices {
		d.Device = append(d.Device, encodeDevice(v))
	}
	for _, v := range set.Customers {
		d.Customer = append(d.Customer, &efdipb.Customer{Id: uid("CTR", v.ID), LastName: valid(v.LastName), FirstName: valid(v.FirstName)})
	}
	for _, v := range set.Farms {
		d.Farm = append(d.Farm, &efdipb.Farm{Id: uid("FRM", v.ID), Designator: valid(v.Designator), Customer: uid("CTR", v.CustomerID)})
	}
	for _, v := range set.Workers {
		d.Worker = append(d.Worker, &efdipb.Worker{Id: uid("WKR", v.ID), LastName: valid(v.LastName), FirstName: valid(v.FirstName)})
	}
	for _, v := range set.Products {
		d.Product = append(d.Product, encodeProduct(v))
	}
	for _, v := range set.ProductGroups {
		d.ProductGroup = append(d.ProductGroup, &efdipb.ProductGroup{Id: uid("PGP", v.ID), Designator: valid(v.Designator)})
	}
	for _, v := range set.CropTypes {
		crop := &efdipb.CropType{Id: uid("CTP", v.ID), Designator: valid(v.Designator)}
		for _, variety := range v.Varieties {
			crop.Variety = append(crop.Variety, &efdipb.CropVariety{Id: uid("CVT", variety.ID), Designator: valid(variety.Designator)})
		}
		d.CropType = append(d.CropType, crop)
	}
	for _, v := range set.ValuePresentations {
		d.ValuePresentation = append(d.ValuePresentation, &efdipb.ValuePresentation{Id: uid("VPN", v.ID), Offset: v.Offset, Scale: v.Scale,
			Decimals: uint32(max(v.Decimals, 0)), Unit: valid(v.Unit)})
	}
	for _, v := range set.Fields {
		d.Partfield = append(d.Partfield, encodeField(v))
	}
	encodeWork(d, set)
	for _, v := range set.Tasks {
		d.Task = append(d.Task, cfg.task(v))
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("efdi: %w", err)
	}
	return b, nil
}

func encodeDevice(v farmdata.Device) *efdipb.Device {
	d := &efdipb.Device{Id: uid("DVC", v.ID), Designator: valid(v.Designator), SoftwareVersion: valid(v.SoftwareVersion), ClientName: binary(v.Name),
		SerialNumber: valid(v.SerialNumber), StructureLabel: binary(v.StructureLabel), LocalizationLabel: binary(v.LocalizationLabel)}
	for _, e := range v.Elements {
		element := &efdipb.DeviceElement{Id: uid("DET", e.ID), ObjectId: number(e.ObjectID), Type: int32(e.Type), Designator: valid(e.Designator),
			Number: number(e.Number), ParentObjectId: number(e.ParentObjectID)}
		for _, object := range e.Objects {
			element.Reference = append(element.Reference, &efdipb.DeviceObjectReference{ObjectId: number(object)})
		}
		d.Element = append(d.Element, element)
	}
	for _, p := range v.ProcessData {
		d.ProcessData = append(d.ProcessData, &efdipb.DeviceProcessData{ObjectId: number(p.ObjectID), Ddi: uint32(p.DDI), Property: number(p.Property),
			Triggers: number(p.Triggers), Designator: valid(p.Designator), ValuePresentationObjectId: number(p.PresentationID)})
	}
	for _, p := range v.Properties {
		d.Property = append(d.Property, &efdipb.DeviceProperty{ObjectId: number(p.ObjectID), Ddi: uint32(p.DDI), Value: p.Value,
			Designator: valid(p.Designator), ValuePresentationObjectId: number(p.PresentationID)})
	}
	for _, p := range v.Presentations {
		d.ValuePresentation = append(d.ValuePresentation, &efdipb.DeviceValuePresentation{ObjectId: number(p.ObjectID), Offset: p.Offset, Scale: p.Scale,
			Decimals: number(p.Decimals), Unit: valid(p.Unit)})
	}
	return d
}

func encodeField(v farmdata.Field) *efdipb.Partfield {
	f := &efdipb.Partfield{Id: uid("PFD", v.ID), Code: valid(v.Code), Designator: valid(v.Designator), Area: uint64(max(v.Area, 0)),
		Customer: uid("CTR", v.CustomerID), Farm: uid("FRM", v.FarmID), CropType: uid("CTP", v.CropTypeID), CropVariety: uid("CVT", v.VarietyID),
		Field: uid("PFD", v.ParentID), Polygon: encodePolygons(v.Polygons), LineString: encodeLines(v.Lines), Point: encodePoints(v.Points)}
	for _, g := range v.Guidance {
		group := &efdipb.GuidanceGroup{Id: uid("GGP", g.ID), Designator: valid(g.Designator), Boundary: encodePolygons(g.Boundaries)}
		for _, p := range g.Patterns {
			pattern := &efdipb.GuidancePattern{Id: uid("GPN", p.ID), Designator: valid(p.Designator), Type: int32(p.Type), Heading: p.Heading,
				Radius: uint64(max(p.Radius, 0)), Boundary: encodePolygons(p.Boundaries)}
			if len(p.Lines) > 0 {
				pattern.LineString = encodeLines(p.Lines[:1])[0]
			}
			group.Pattern = append(group.Pattern, pattern)
		}
		f.GuidanceGroup = append(f.GuidanceGroup, group)
	}
	return f
}

func encodePolygons(list []farmdata.Polygon) (polygons []*efdipb.Polygon) {
	for _, v := range list {
		polygons = append(polygons, &efdipb.Polygon{Id: uid("PLN", v.ID), Type: int32(v.Type), Designator: valid(v.Designator),
			Area: uint64(max(v.Area, 0)), LineString: encodeLines(v.Rings)})
	}
	return polygons
}

func encodeLines(list []farmdata.LineString) (lines []*efdipb.LineString) {
	for _, v := range list {
		lines = append(lines, &efdipb.LineString{Id: uid("LSG", v.ID), Type: int32(v.Type), Designator: valid(v.Designator), Point: encodePoints(v.Points)})
	}
	return lines
}

func encodePoints(list []farmdata.Point) (points []*efdipb.Point) {
	for _, v := range list {
		points = append(points, &efdipb.Point{Id: uid("PNT", v.ID), Type: int32(v.Type), Designator: valid(v.Designator), North: v.North, East: v.East, Up: v.Up})
	}
	return points
}

func (c EncodeConfig) task(v farmdata.Task) *efdipb.Task {
	t := &efdipb.Task{Id: uid("TSK", v.ID), Designator: valid(v.Designator), Customer: uid("CTR", v.CustomerID), Farm: uid("FRM", v.FarmID),
		Partfield: uid("PFD", v.FieldID), Worker: uid("WKR", v.WorkerID), Status: int32(v.Status),
		DefaultZone: number(v.DefaultZone), PositionLostZone: number(v.LostZone), OutOfFieldZone: number(v.OutsideZone)}
	for _, at := range v.Times {
		t.Time = append(t.Time, c.time(at))
	}
	for _, z := range v.Zones {
		zone := &efdipb.TreatmentZone{Code: number(z.Code), Designator: valid(z.Designator), Polygon: encodePolygons(z.Polygons)}
		for _, value := range z.Values {
			zone.Value = append(zone.Value, &efdipb.ProcessDataVariable{Ddi: uint32(value.DDI), Value: value.Raw, Product: uid("PDT", value.ProductID),
				DeviceElement: uid("DET", value.ElementID), ValuePresentation: uid("VPN", value.Presentation)})
		}
		t.TreatmentZone = append(t.TreatmentZone, zone)
	}
	for _, a := range v.Devices {
		t.DeviceAllocation = append(t.DeviceAllocation, &efdipb.DeviceAllocation{ClientName: binary(a.Name), ClientNameMask: binary(a.Mask),
			Device: uid("DVC", a.DeviceID), Stamp: c.stamp(a.Start, a.Stop, a.TimeType)})
	}
	for _, a := range v.Products {
		t.ProductAllocation = append(t.ProductAllocation, &efdipb.ProductAllocation{Product: uid("PDT", a.ProductID), DeviceElement: uid("DET", a.ElementID),
			ValuePresentation: uid("VPN", a.Presentation), Ddi: uint32(a.DDI), Value: a.Raw, Mode: int32(a.Mode), Stamp: c.stamp(a.Start, a.Stop, a.TimeType)})
	}
	for _, a := range v.Guidance {
		t.GuidanceAllocation = append(t.GuidanceAllocation, &efdipb.GuidanceAllocation{GuidanceGroup: uid("GGP", a.GroupID), Stamp: c.stamp(a.Start, a.Stop, a.TimeType)})
	}
	c.workOfTask(t, v)
	if len(v.Grids) > 0 {
		g := v.Grids[0]
		t.Grid = &efdipb.Grid{Type: int32(g.Type), North: g.North, East: g.East, CellNorth: g.CellNorth, CellEast: g.CellEast,
			Rows: uint64(max(g.Rows, 0)), Columns: uint64(max(g.Cols, 0)), Filename: uid("GRD", g.Name), TreatmentZone: number(g.Zone)}
	}
	return t
}

func (c EncodeConfig) time(v farmdata.TaskTime) *efdipb.Time {
	t := &efdipb.Time{Start: c.instant(v.Start), Stop: c.instant(v.Stop), Duration: uint64(max(v.Duration, 0) / time.Second), Type: int32(v.Type)}
	for i, p := range v.Positions {
		switch i {
		case 0:
			t.PositionStart = encodePosition(&p)
		case 1:
			t.PositionStop = encodePosition(&p)
		}
	}
	for _, total := range v.Totals {
		t.DataLogValue = append(t.DataLogValue, &efdipb.DataLogValue{Ddi: uint32(total.DDI), Value: total.Raw, DeviceElement: uid("DET", total.ElementID)})
	}
	return t
}

func (c EncodeConfig) stamp(start, stop farmdata.Stamp, kind int) *efdipb.AllocationStamp {
	if start.IsZero() && stop.IsZero() && kind == 0 {
		return nil
	}
	return &efdipb.AllocationStamp{Start: c.instant(start), Stop: c.instant(stop), Type: int32(kind)}
}

// uid makes the number of an ID of TaskData, so that reading it makes the same ID again; what is no such
// ID stands there as it is.
func uid(letters, id string) *efdipb.UID {
	if id == "" {
		return nil
	}
	if digits, ok := strings.CutPrefix(id, letters); ok {
		if n, err := strconv.ParseInt(digits, 10, 64); err == nil && n != 0 && strconv.FormatInt(n, 10) == digits {
			return &efdipb.UID{Number: n}
		}
	}
	return &efdipb.UID{Uri: []string{valid(id)}}
}

// number takes what is not given, which is negative, for zero, as protobuf does.
func number(n int) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

// valid makes a text one that protobuf takes.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// binary reads hexadecimal digits; nil for what is none.
func binary(text string) []byte {
	b, err := hex.DecodeString(text)
	if err != nil {
		return nil
	}
	return b
}
