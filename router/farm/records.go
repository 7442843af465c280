package farm

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/farmfile"
	"github.com/agrimill/agrimill/internal/validate"
)

// Metadata of what transforms make.
const (
	// KeySourceType is the message type of the payload that was decoded. The message itself has the
	// type [TypeRecords], [TypeSummary], [TypeGeoJSON], [TypeGeoParquet], [TypeDeviceDescription] or [TypeTimeLog].
	KeySourceType = "x-farm-source-type"
	// KeyLog and KeyTask are the name of the log and the ID of its task; left out if there is none.
	KeyLog  = "x-farm-log"
	KeyTask = "x-farm-task"
	// KeyPart counts the messages of one log from 0, KeyRecords the records in the message.
	KeyPart    = "x-farm-part"
	KeyRecords = "x-farm-records"
)

// Message types of what transforms make.
const (
	TypeRecords = "farm:records:jsonl"
	TypeSummary = "farm:summary:json"
)

// Defaults of [RecordsConfig].
const (
	DefaultBatchRecords = 1000
	DefaultBatchBytes   = 256 << 10
	DefaultMaxOutput    = 64 << 20
)

// RecordsConfig configures [NewRecords].
type RecordsConfig struct {
	// BatchRecords is how many records a message has at most. 0 means
	// [DefaultBatchRecords]; negative is an error.
	BatchRecords int `yaml:"batch_records"`
	// BatchBytes is the size at which a message ends, after a whole record. 0 means [DefaultBatchBytes]; negative is
	// an error.
	BatchBytes int64 `yaml:"batch_bytes" unit:"bytes"`
	// MaxOutput is how many bytes the messages made of one payload may have. They are in
	// memory until the sink has them, and a payload that would make more passes as it is. 0
	// means [DefaultMaxOutput]; negative is an error.
	MaxOutput int64 `yaml:"max_output" unit:"bytes"`

	ReadConfig `yaml:",inline"`
}

// WithDefaults returns the configuration with its defaults.
func (c RecordsConfig) WithDefaults() RecordsConfig {
	c.BatchRecords, c.BatchBytes = cmp.Or(c.BatchRecords, DefaultBatchRecords), cmp.Or(c.BatchBytes, DefaultBatchBytes)
	c.MaxOutput, c.ReadConfig = cmp.Or(c.MaxOutput, DefaultMaxOutput), c.ReadConfig.WithDefaults()
	return c
}

// Validate reports every field with an invalid value; the error matches [ErrConfig].
func (c RecordsConfig) Validate() error {
	var e validate.Errors
	validate.NotNegative(&e, "BatchRecords", c.BatchRecords)
	validate.NotNegative(&e, "BatchBytes", c.BatchBytes)
	validate.NotNegative(&e, "MaxOutput", c.MaxOutput)
	e.Join("", c.ReadConfig.Validate())
	return e.Err(ErrConfig)
}

// NewRecords returns a transform for [router.Route.Transform] that decodes the logs of TaskData and EFDI
// into records. Each message has a part of one log as JSON lines: the first line is a [BatchHeader], each
// other one a record:
//
//	{"record":17,"time":"2026-05-04T06:30:17","north":52.1,"east":8.2,"values":{"0043_DET-1":9}}
//
// Values are scaled and have the names of the columns in the header; each record has those that the log has once for all. A time without an offset is local to the machine.
//
// They have the type [TypeRecords], and [KeyLog], [KeyTask], [KeyPart] and [KeyRecords]. What has no logs makes no message; a payload of
// which no record can be read passes as it is, with [KeyReadable].
func NewRecords(config RecordsConfig) (message.HandlerFunc, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	r := newReader(config.ReadConfig)
	return transform(r, func(ctx context.Context, to *maker, data *content.Data) error {
		for i, set := range data.Sets {
			for j, log := range set.Logs {
				b := &batches{config: config, maker: to, log: log, set: set, index: strconv.Itoa(i) + "/" + strconv.Itoa(j)}
				if err := b.run(ctx); err != nil {
					return err
				}
			}
		}
		to.dropEmpty()
		return nil
	}), nil
}

// NewSummary returns a transform for [router.Route.Transform] that makes a [content.Summary] as JSON of
// TaskData and EFDI: one message of the type [TypeSummary]. A payload whose summary would have more than [DefaultMaxOutput] bytes of
// texts passes as it is, with [KeyReadable].
func NewSummary(config ReadConfig) (message.HandlerFunc, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	r := newReader(config)
	return transform(r, func(ctx context.Context, to *maker, data *content.Data) error {
		summary, err := summarize(ctx, data)
		if err != nil {
			return err
		}
		b, err := json.Marshal(summary)
		if err != nil { // every number in it is finite
			return &unreadable{"it has no summary: " + err.Error()}
		}
		to.lost = unread(summary)
		to.add(b, TypeSummary, "-summary.json", nil)
		return nil
	}), nil
}

// transform makes a handler of what a payload is to be turned into.
func transform(r *reader, produce func(ctx context.Context, to *maker, data *content.Data) error) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		to := &maker{received: msg}
		err := r.use(msg, func(ctx context.Context, o opened) error {
			to.digest, to.devices = sha256.Sum256(o.payload), o.devices
			to.lose(o.data.Unread())
			return produce(ctx, to, o.data)
		})
		if err == nil && len(to.made) == 0 && to.lost != "" {
			err = &unreadable{to.lost} // nobody knows that there is nothing to be made of it
		}
		var not *unreadable
		switch {
		case errors.As(err, &not):
			to.made = []*message.Message{msg}
			mark(to.made, ReadableNo, not.reason)
			err = nil
		case err == nil && to.lost != "":
			mark(to.made, ReadablePartly, to.lost)
		}
		return to.made, err
	}
}

// maker makes messages of one that was received.
type maker struct {
	received *message.Message
	digest   [sha256.Size]byte
	devices  string // a value of KeyDevices, or empty
	made     []*message.Message
	bytes    int64
	lost     string // the first finding by which a part could not be read
	missed   string // the first finding by which something could not be read, be it one value
	read     int    // records, cells and fields that could be read, or of a map, that it shows
	there    bool   // something was there that would have been made something of
}

// lose notes a finding, if a part or a value could not be read because of it.
func (m *maker) lose(finding *farmdata.Finding) {
	if finding == nil {
		return
	}
	if m.lost == "" && finding.Kind.Unread() {
		m.lost = finding.Error()
	}
	if m.missed == "" && finding.Kind.Loses() {
		m.missed = finding.Error()
	}
}

// dropEmpty drops what was made if nothing is in it because nothing could be read, so that the payload passes as it is. Values
// that are lost are enough for that where something was there.
func (m *maker) dropEmpty() {
	if m.read > 0 {
		return
	}
	if m.there || len(m.made) > 0 {
		m.lost = cmp.Or(m.lost, m.missed)
	}
	if m.lost != "" {
		m.made = nil
	}
}

// namespace keeps the UUIDs of decoded messages apart from those of others.
var namespace = uuid.MustParse("2f0a6f0e-8f53-4b52-9a53-7b8f6d6b4c11")

// add makes a message. The UUID is made of the payload that was received, of who received it,
// of what names the message, and of its payload: another configuration makes another one. ending is how its file name ends.
func (m *maker) add(payload []byte, kind, ending string, metadata message.Metadata, names ...string) {
	made := sha256.Sum256(payload)
	name := slices.Concat(m.digest[:], made[:])
	parts := append([]string{m.received.Metadata[gateway.KeyTenantID], m.received.Metadata[gateway.KeyReceivingEndpointID], kind}, names...)
	if m.devices != "" {
		parts = append(parts, teamset(m.received.Metadata)) // the same bytes of two teamsets are two logs
	}
	name = appendParts(name, parts...)
	out := message.NewMessage(uuid.NewHash(sha256.New(), namespace, name, 8).String(), payload)
	out.Metadata = maps.Clone(m.received.Metadata)
	if out.Metadata == nil {
		out.Metadata = message.Metadata{}
	}
	for _, key := range []string{gateway.KeyPayloadMode, gateway.KeyPayloadReference, gateway.KeyPayloadSHA256, KeyReadable, KeyReason} {
		delete(out.Metadata, key)
	}
	if out.Metadata[gateway.KeyEventType] == "" { // publishers take it for the ID of this payload
		delete(out.Metadata, gateway.KeyContextID)
	}
	out.Metadata[gateway.KeyPayloadSize] = strconv.Itoa(len(payload))
	if source := out.Metadata[gateway.KeyMessageType]; source != "" {
		out.Metadata[KeySourceType] = source
	}
	out.Metadata[gateway.KeyMessageType] = kind
	file := m.received.Metadata[gateway.KeyFilename]
	out.Metadata[gateway.KeyFilename] = filename(cmp.Or(strings.TrimSuffix(file, path.Ext(file)), "farm"), ending)
	if m.devices != "" {
		out.Metadata[KeyDevices] = m.devices
	}
	maps.Copy(out.Metadata, metadata)
	m.made = append(m.made, out)
	m.bytes += int64(len(payload))
}

// filename joins two parts of a file name. Of one that is too long the end of the stem is cut: the ending tells what is made of
// one message apart.
func filename(stem, ending string) string {
	runes := []rune(stem)
	room := max(0, farmfile.MaxFilename-utf8.RuneCountInString(ending))
	return farmfile.WireFilename(string(runes[:min(len(runes), room)]) + ending)
}

// appendParts appends texts so that no others make the same bytes.
func appendParts(b []byte, parts ...string) []byte {
	for _, part := range parts {
		b = append(strconv.AppendInt(b, int64(len(part)), 10), ':')
		b = append(b, part...)
	}
	return b
}

// BatchHeader is the first line of a message with records.
type BatchHeader struct {
	// Log and Task are the name of the log and the ID of its task, Path the folder of the set in its archive.
	Log  string `json:"log"`
	Task string `json:"task"`
	Path string `json:"path"`
	// Part counts the messages of the log from 0; Records is how many follow.
	Part    int `json:"part"`
	Records int `json:"records"`
	// Columns says what the values of the records are, by name.
	Columns map[string]geo.Description `json:"columns"`
	// Findings say what could not be read around these records, in the first part also of what the log has once for all.
	Findings []string `json:"findings,omitempty"`
}

// batches makes the messages of one log.
type batches struct {
	config  RecordsConfig
	maker   *maker
	log     *farmdata.Log
	set     *farmdata.Set
	index   string
	keys    geo.Keys
	part    int
	lines   []byte
	told    int                        // bytes of findings beside them
	used    map[*farmdata.Column]int64 // the record, from 1, that a column was last written in
	columns map[string]*farmdata.Column
	header  BatchHeader
	// described is how many bytes say what the columns are: several may have the same long names.
	described int64
}

func (b *batches) run(ctx context.Context) error {
	b.used, b.columns = map[*farmdata.Column]int64{}, map[string]*farmdata.Column{}
	b.keys.BeginLog(b.log)
	var finding *farmdata.Finding
	for record, err := range bounded(ctx, b.log.WithConstants(), nil) {
		switch {
		case err == nil:
			b.record(record)
		case errors.As(err, &finding):
			text := err.Error()
			b.header.Findings, b.told = append(b.header.Findings, text), b.told+len(text)
			b.maker.lose(finding)
		default:
			return err
		}
		if b.header.Records >= b.config.BatchRecords || int64(len(b.lines)+b.told) >= b.config.BatchBytes {
			if err := b.flush(); err != nil {
				return err
			}
		}
	}
	if b.header.Records > 0 || len(b.header.Findings) > 0 {
		return b.flush()
	}
	return ctx.Err()
}

// record appends a line.
func (b *batches) record(r *farmdata.Record) {
	line := append(b.lines, `{"record":`...)
	line = strconv.AppendInt(line, r.Number, 10)
	if !r.Stamp.IsZero() {
		line = append(append(append(line, `,"time":"`...), r.Stamp.String()...), '"')
	}
	p := r.Position
	if p.Valid() {
		line = appendFloat(append(line, `,"north":`...), p.North)
		line = appendFloat(append(line, `,"east":`...), p.East)
		if p.Has&farmdata.HasUp != 0 {
			line = appendFloat(append(line, `,"up":`...), float64(p.Up)/1000)
		}
		if p.Has&farmdata.HasStatus != 0 {
			line = strconv.AppendInt(append(line, `,"status":`...), int64(p.Status), 10)
		}
		if p.Has&farmdata.HasPDOP != 0 {
			line = appendFloat(append(line, `,"pdop":`...), p.PDOP)
		}
		if p.Has&farmdata.HasHDOP != 0 {
			line = appendFloat(append(line, `,"hdop":`...), p.HDOP)
		}
		if p.Has&farmdata.HasSatellites != 0 {
			line = strconv.AppendInt(append(line, `,"satellites":`...), int64(p.Satellites), 10)
		}
		if p.Has&farmdata.HasFieldStatus != 0 {
			line = strconv.AppendInt(append(line, `,"field_status":`...), int64(p.FieldStatus), 10)
		}
	}
	line = append(line, `,"values":{`...)
	first := true
	for _, v := range r.Values {
		if b.used[v.Column] == r.Number+1 {
			continue // twice in damaged data; an object has a name once
		}
		b.used[v.Column] = r.Number + 1
		if !first {
			line = append(line, ',')
		}
		first = false
		name := b.keys.Name(v.Column)
		if c := v.Column; b.columns[name] == nil {
			b.columns[name], b.described = c, b.described+int64(len(c.Name)+len(c.Unit)+len(c.Element)+len(c.Device))
		}
		line = append(append(append(line, '"'), name...), `":`...) // letters, digits, _ and - only
		line = appendFloat(line, v.Scaled())
	}
	b.lines = append(line, "}}\n"...)
	b.header.Records++
	b.maker.read++
}

// appendFloat writes null for what JSON has no number for.
func appendFloat(b []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, f, 'g', -1, 64)
}

// ofHeader returns what the set tells about the files of the log, such as values that its header has once for all records.
func (b *batches) ofHeader() (texts []string) {
	for _, finding := range b.set.Findings {
		file := path.Base(finding.File)
		whole := finding.File == "" && finding.Kind.Loses() // EFDI, which has no files
		if whole || b.log.Name != "" && strings.EqualFold(strings.TrimSuffix(file, path.Ext(file)), b.log.Name) {
			texts = append(texts, finding.Error())
		}
	}
	return texts
}

// ofLog returns metadata that name a log and its task.
func ofLog(log *farmdata.Log) message.Metadata {
	metadata := message.Metadata{}
	for key, value := range map[string]string{KeyLog: log.Name, KeyTask: log.TaskID} {
		if value != "" {
			metadata[key] = clean(value)
		}
	}
	return metadata
}

func (b *batches) tooMuch() error {
	return &unreadable{fmt.Sprintf("limit: its records would take more than %d bytes (max_output)", b.config.MaxOutput)}
}

// flush makes a message of what was collected.
func (b *batches) flush() error {
	b.header.Log, b.header.Task, b.header.Path, b.header.Part = b.log.Name, b.log.TaskID, b.set.Path, b.part
	if b.part == 0 {
		b.header.Findings = append(b.ofHeader(), b.header.Findings...)
	}
	b.header.Columns = make(map[string]geo.Description, len(b.columns))
	for name, c := range b.columns {
		b.header.Columns[name] = geo.Description{DDI: c.DDI.String(), Name: c.Name, Unit: c.Unit, Element: c.Element, Device: c.Device}
	}
	if b.maker.bytes+b.described > b.config.MaxOutput {
		return b.tooMuch()
	}
	payload, err := json.Marshal(b.header)
	if err != nil { // there are only texts and whole numbers in it
		return &unreadable{err.Error()}
	}
	payload = append(append(payload, '\n'), b.lines...)
	metadata := ofLog(b.log)
	metadata[KeyPart], metadata[KeyRecords] = strconv.Itoa(b.part), strconv.Itoa(b.header.Records)
	if n := len(b.header.Findings); n > 0 {
		metadata[KeyFindings] = strconv.Itoa(n)
	}
	ending := fmt.Sprintf("-%s-%d.jsonl", cmp.Or(b.log.Name, "log"), b.part)
	b.maker.add(payload, TypeRecords, ending, metadata, b.index, strconv.Itoa(b.part))
	if b.maker.bytes > b.config.MaxOutput {
		return b.tooMuch()
	}
	b.part++
	b.lines, b.told, b.header = b.lines[:0], 0, BatchHeader{}
	clear(b.columns)
	b.described = 0
	return nil
}
