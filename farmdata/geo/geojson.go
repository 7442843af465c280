package geo

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/names"
	"github.com/agrimill/agrimill/farmdata/internal/tracks"
)

// Writer writes one FeatureCollection, for one goroutine. Beside the features it has
// a member "columns" that says what the properties with the names of Keys are.
type Writer struct {
	w        *bufio.Writer
	cfg      Config
	keys     Keys
	set      *farmdata.Set // that names is of
	names    *names.Directory
	told     map[*farmdata.Task]bool // that have been asked for zones without a place
	features int
	closed   bool
}

// NewWriter returns a Writer that writes to w. An error of w comes from the call that
// met it or from a later one, at the latest from Close.
func NewWriter(w io.Writer, cfg Config) (*Writer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	return &Writer{w: bufio.NewWriterSize(w, 64<<10), cfg: cfg, keys: Keys{Select: cfg.Columns, Finding: cfg.Finding}, set: cfg.Set, names: names.New(cfg.Set), told: map[*farmdata.Task]bool{}}, nil
}

// Close completes the collection. It does not close what the Writer writes to. A
// second call does nothing.
func (w *Writer) Close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	w.open()
	w.raw("]")
	if list := w.keys.Descriptions(); len(list) > 0 {
		w.raw(`,"columns":{`)
		for i, name := range slices.Sorted(maps.Keys(list)) { // one by one: several may have the same long names
			w.comma(i)
			w.string(name)
			w.raw(":")
			description, err := json.Marshal(list[name])
			if err != nil {
				return fmt.Errorf("geo: %w", err)
			}
			if _, err := w.w.Write(description); err != nil {
				return fmt.Errorf("geo: %w", err)
			}
		}
		w.raw("}")
	}
	w.raw("}\n")
	return w.flush()
}

// Track writes the way of a log: a LineString for each part of it without a gap of five minutes, or a
// Point where the machine stood still. Parts also end at the 180th meridian.
func (w *Writer) Track(log *farmdata.Log) error {
	t := track{attributes: w.ofLog(nil, log)}
	for record, err := range log.Records {
		if err != nil {
			if err := w.found(err); err != nil {
				return err
			}
			continue
		}
		if !record.Position.Valid() {
			continue
		}
		at := Coordinates{record.Position.East, record.Position.North}
		if t.steps.Next(record.Stamp, at[1], at[0], meridian) {
			w.endTrack(&t)
		}
		switch {
		case t.count == 0:
			t.first = record.Stamp
		case !t.moved && at == t.at:
		default:
			if !t.moved {
				t.moved = true
				w.begin()
				w.raw(`"geometry":{"type":"LineString","coordinates":[`)
				w.coordinates(t.at)
			}
			w.raw(",")
			w.coordinates(at)
		}
		t.count++
		t.at, t.stamp = at, record.Stamp
		if t.count%1000 == 0 && w.failed() != nil {
			return w.failed()
		}
	}
	w.endTrack(&t)
	return w.failed()
}

// track is a part of a track that is being written.
type track struct {
	count, part  int
	moved        bool // a LineString has begun
	at           Coordinates
	steps        tracks.Steps
	first, stamp farmdata.Stamp
	attributes   []byte // of the log
}

func (w *Writer) endTrack(t *track) {
	switch {
	case t.count == 0:
		return
	case !t.moved:
		w.begin()
		w.raw(`"geometry":{"type":"Point","coordinates":`)
		w.coordinates(t.at)
		w.raw("}")
	default:
		w.raw("]}")
	}
	t.part++
	w.raw(`,"properties":{"kind":"track"`)
	_, _ = w.w.Write(t.attributes)
	w.raw(`,"part":` + strconv.Itoa(t.part) + `,"records":` + strconv.Itoa(t.count) + `,"start":`)
	w.text(t.first.String())
	w.raw(`,"end":`)
	w.text(t.stamp.String())
	w.raw("}}")
	t.count, t.moved = 0, false
}

// Field writes the boundaries of a field as one MultiPolygon; nothing if it has none. Rings that it lacks are a finding.
func (w *Writer) Field(field *farmdata.Field) error {
	multi, finding := FieldPolygon(field)
	if finding != nil {
		w.cfg.Finding(finding)
	}
	if len(multi) == 0 {
		return w.failed()
	}
	w.begin()
	w.multiPolygon(multi)
	w.raw(`,"properties":{"kind":"field","id":`)
	w.string(field.ID)
	w.raw(`,"name":`)
	w.string(field.Designator)
	w.raw(`,"area":`)
	if field.Area > 0 {
		w.integer(field.Area)
	} else {
		w.raw("null")
	}
	_, _ = w.w.Write(w.attributes(nil, names.Subject{Field: field}, w.cfg.Add))
	w.raw("}}")
	return w.failed()
}

// Nowhere is the finding that a grid has no place on a map.
func Nowhere(grid *farmdata.Grid) *farmdata.Finding {
	return &farmdata.Finding{Kind: farmdata.KindPosition, File: grid.Name, Offset: -1, Record: -1, Detail: "grid has no place on Earth: no map shows it"}
}

// found takes what a stream yields instead of a record.
func (w *Writer) found(err error) error {
	var finding *farmdata.Finding
	if !errors.As(err, &finding) {
		return fmt.Errorf("geo: %w", err)
	}
	w.cfg.Finding(finding)
	return nil
}

// open begins the collection.
func (w *Writer) open() {
	if w.features == 0 {
		w.raw(`{"type":"FeatureCollection","features":[`)
		w.features = -1 // nothing in it yet
	}
}

// begin begins a feature.
func (w *Writer) begin() {
	w.open()
	if w.features > 0 {
		w.raw(",\n")
	} else {
		w.features = 0
	}
	w.features++
	w.raw(`{"type":"Feature",`)
}

// failed returns the error that the buffer keeps.
func (w *Writer) failed() error {
	if _, err := w.w.Write(nil); err != nil {
		return fmt.Errorf("geo: %w", err)
	}
	return nil
}

func (w *Writer) flush() error {
	if err := w.w.Flush(); err != nil {
		return fmt.Errorf("geo: %w", err)
	}
	return nil
}

func (w *Writer) raw(s string) { _, _ = w.w.WriteString(s) } // failed has the error

func (w *Writer) comma(i int) {
	if i > 0 {
		w.raw(",")
	}
}

func (w *Writer) string(s string) {
	_, _ = w.w.Write(appendString(w.w.AvailableBuffer(), s))
}

// text writes null for a text that is empty.
func (w *Writer) text(s string) {
	_, _ = w.w.Write(appendText(w.w.AvailableBuffer(), s))
}

// appendString appends a text as JSON.
func appendString(b []byte, s string) []byte {
	if !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' || strings.ContainsRune(`"\\<>&`, c) }) {
		return append(append(append(b, '"'), s...), '"') // as it is, e.g. a time
	}
	quoted, err := json.Marshal(s)
	if err != nil { // a string always can be marshaled
		return append(b, `""`...)
	}
	return append(b, quoted...)
}

func (w *Writer) integer(n int64) {
	_, _ = w.w.Write(strconv.AppendInt(w.w.AvailableBuffer(), n, 10))
}

func (w *Writer) number(f float64) {
	_, _ = w.w.Write(appendFloat(w.w.AvailableBuffer(), f))
}

// appendFloat appends the shortest text that means the number, or null for what JSON has no number for. Most numbers are whole, or have the
// few decimals of values and positions, which takes a tenth of the time.
func appendFloat(b []byte, f float64) []byte {
	const exact = 1e15 // numbers of so many digits all differ
	if n := int64(f); -exact < f && f < exact && float64(n) == f && (n != 0 || !math.Signbit(f)) {
		return strconv.AppendInt(b, n, 10)
	}
	for _, one := range []float64{1e3, 1e7} {
		if n := math.Round(f * one); n/one == f && math.Abs(n) < exact && n != 0 {
			return appendDecimal(b, int64(n), int64(one))
		}
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, f, 'g', -1, 64)
}

// appendDecimal appends n/one, which is not whole. one is a power of ten of at most 32 bits.
func appendDecimal(b []byte, n, one int64) []byte {
	if n < 0 {
		b, n = append(b, '-'), -n
	}
	whole := n / one
	b = append(strconv.AppendInt(b, whole, 10), '.')
	rest := uint32(n - whole*one)
	for ; rest%10 == 0; rest /= 10 { // which is not 0
		one /= 10
	}
	from := len(b)
	for ; one > 1; one /= 10 {
		b = append(b, '0')
	}
	for i := len(b) - 1; i >= from; i-- {
		b[i], rest = '0'+byte(rest%10), rest/10
	}
	return b
}

func (w *Writer) coordinates(at Coordinates) {
	b := appendFloat(append(w.w.AvailableBuffer(), '['), at[0])
	b = appendFloat(append(b, ','), at[1])
	_, _ = w.w.Write(append(b, ']'))
}

// list writes a list of JSON.
func list[T any](w *Writer, items []T, write func(T)) {
	w.raw("[")
	for i, item := range items {
		w.comma(i)
		write(item)
	}
	w.raw("]")
}

func (w *Writer) ring(ring []Coordinates) { list(w, ring, w.coordinates) }

func (w *Writer) multiPolygon(multi [][][]Coordinates) {
	w.raw(`"geometry":{"type":"MultiPolygon","coordinates":`)
	list(w, multi, func(polygon [][]Coordinates) { list(w, polygon, w.ring) })
	w.raw("}")
}

// property is a column of values on the map.
type property struct {
	*Key               // nil: it is not written
	text        []byte // the name, as the beginning of a property
	placeholder int    // in Config.Columns of the column that is in each feature; -1 for other columns
	record      int64  // counted from 1, that it was last written in
}

func (w *Writer) property(column *farmdata.Column) *property {
	p := &property{Key: w.keys.Key(column), placeholder: -1}
	if p.Key != nil {
		p.text = append(appendString([]byte{','}, p.Name), ':')
		p.placeholder = slices.IndexFunc(w.cfg.Columns, func(c Column) bool { return c.As == p.Name })
	}
	return p
}

// ofLog appends the log, its task, and what was asked for beside them.
func (w *Writer) ofLog(b []byte, log *farmdata.Log) []byte {
	b = appendString(append(b, `,"log":`...), log.Name)
	s := w.names.Log(log, slices.Contains(w.cfg.Add, Machine))
	if !slices.Contains(w.cfg.Add, Task) {
		b = appendText(append(b, `,"task":`...), log.TaskID)
	}
	return w.attributes(b, s, w.cfg.Add)
}

// attributes appends the ID and the name of each attribute.
func (w *Writer) attributes(b []byte, s names.Subject, list []Attribute) []byte {
	for _, attribute := range list {
		r := w.names.Of(string(attribute), s)
		b = appendText(append(append(append(b, `,"`...), attribute...), `":`...), r.ID)
		b = appendText(append(append(append(b, `,"`...), attribute...), `_name":`...), r.Name)
	}
	return b
}

// appendText appends a text, or null for none.
func appendText(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendString(b, s)
}
