package efdi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/farmdata/internal/columns"
	"github.com/agrimill/agrimill/farmdata/internal/objects"
)

// EncodeConfig says how data becomes EFDI.
type EncodeConfig struct {
	// Location is where local times are from: the times of EFDI are instants. Nil means UTC. Of an
	// hour that clocks show twice, because they are put back, the one near the UTC of the receiver is meant, or else the
	// first one. What they skip counts on from before.
	Location *time.Location
	// Finding is called by the goroutine that writes, for each finding of a log while it is read, and for what
	// MarshalTaskData does not write as it is. Nil ignores findings.
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
		var b, message []byte
		values := columns.Memo[encoded]{Make: newEncoded}
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
			if message, err = encode.MarshalAppend(message[:0], c.entry(record)); err != nil {
				yield(nil, fmt.Errorf("efdi: %w", err))
				return
			}
			for i, v := range record.Values {
				column := values.At(i, v.Column)
				message = column.append(message, v.Raw)
			}
			b = protowire.AppendBytes(protowire.AppendTag(b[:0], timeLogEntry, protowire.BytesType), message)
			if !yield(b, nil) {
				return
			}
		}
	}
}

// encoded is what values of a column have in common, before and behind the number. They are encoded by hand, which takes a tenth of the time.
type encoded struct{ before, after []byte }

func newEncoded(column *farmdata.Column) encoded {
	encode := func(v *efdipb.DataLogValue) []byte {
		b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(v) // numbers, and a text that is valid
		return b
	}
	return encoded{encode(&efdipb.DataLogValue{Ddi: uint32(column.DDI)}), encode(&efdipb.DataLogValue{
		DeviceElement: uid("DET", column.ElementID), Pgn: uint64(column.PGN), PgnStartBit: uint32(column.StartBit), PgnStopBit: uint32(column.StopBit),
	})}
}

// append appends a value as a field of an entry.
func (e *encoded) append(b []byte, value int64) []byte {
	raw, size := protowire.EncodeZigZag(value), len(e.before)+len(e.after)
	if raw != 0 {
		size += 1 + protowire.SizeVarint(raw)
	}
	b = append(protowire.AppendVarint(append(b, tagValue), uint64(size)), e.before...)
	if raw != 0 {
		b = protowire.AppendVarint(append(b, tagRaw), raw)
	}
	return append(b, e.after...)
}

// entry is one of a log without its values, which follow.
func (c EncodeConfig) entry(record *farmdata.Record) *efdipb.Time {
	const effective = 4
	t := &efdipb.Time{Start: c.instant(record.Stamp), Type: effective}
	if record.Position.Has != 0 || !record.Stamp.UTC.IsZero() {
		t.PositionStart = encodePosition(&record.Position)
		if !record.Stamp.UTC.IsZero() {
			t.PositionStart.GpsUtc = timestamppb.New(record.Stamp.UTC)
		}
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
	out := &efdipb.Position{Status: statusUnknown}                           // zero would be: no GPS
	if place := farmdata.HasNorth | farmdata.HasEast; p.Has&place == place { // half of it would be a place elsewhere
		out.North, out.East = p.North, p.East
	}
	if p.Has&farmdata.HasUp != 0 {
		out.Up = p.Up
	}
	if p.Has&farmdata.HasStatus != 0 {
		out.Status = int32(p.Status)
	}
	if p.Has&farmdata.HasPDOP != 0 {
		out.Pdop = p.PDOP
	}
	if p.Has&farmdata.HasHDOP != 0 {
		out.Hdop = p.HDOP
	}
	if p.Has&farmdata.HasSatellites != 0 {
		out.Satellites = uint32(max(p.Satellites, 0))
	}
	return out
}

// MarshalTaskData returns a set as a bare ISO11783_TaskData, without its logs, which are messages of
// their own. What has no room in EFDI is left out, with a finding: lists of links, more than one operation or grid of a task, the cells of
// a grid, more than one line of a guidance pattern, and names and labels of devices that are not hexadecimal. So is
// an amount that is missing, since zero is one. A zone without a code is written as zone 0, with a finding, and object IDs below 0 are 0.
func MarshalTaskData(set *farmdata.Set, cfg EncodeConfig) ([]byte, error) {
	d := &efdipb.TaskData{
		VersionMajor: int32(set.Major), VersionMinor: uint32(max(set.Minor, 0)), Software: valid(set.Software), SoftwareVersion: valid(set.SoftwareVersion),
		Controller: valid(set.Controller), ControllerVersion: valid(set.ControllerVersion), Origin: int32(set.Origin),
	}
	cfg.encode(d.ProtoReflect(), objects.Root, set)
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("efdi: %w", err)
	}
	return b, nil
}
