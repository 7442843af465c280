package farm

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/efdi"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
)

// Message types of the service that [NewEFDI] makes.
const (
	TypeDeviceDescription = "iso:11783:-10:device_description:protobuf"
	TypeTimeLog           = "iso:11783:-10:time_log:protobuf"
)

// DefaultPartBytes is the default of [EFDIConfig].PartBytes: a time log must not exceed 1 MB.
const DefaultPartBytes = 976 << 10

// EFDIConfig configures [NewEFDI].
type EFDIConfig struct {
	// Location is the time zone of the machines, as in Europe/Berlin, for the local times of TaskData. Empty means
	// UTC.
	Location string `yaml:"location"`
	// PartBytes is the size of a time log at most; longer ones become several. 0 means
	// [DefaultPartBytes]; negative is an error.
	PartBytes int `yaml:"-"`
	// MaxOutput is how many bytes the messages made of one payload may have. They are in
	// memory until the sink has them, and a payload that would make more passes as it is. 0
	// means [DefaultMaxOutput]; negative is an error.
	MaxOutput int64 `yaml:"max_output" unit:"bytes"`

	ReadConfig `yaml:",inline"`
}

// WithDefaults returns the configuration with its defaults.
func (c EFDIConfig) WithDefaults() EFDIConfig {
	c.PartBytes, c.MaxOutput = cmp.Or(c.PartBytes, DefaultPartBytes), cmp.Or(c.MaxOutput, DefaultMaxOutput)
	c.ReadConfig = c.ReadConfig.WithDefaults()
	return c
}

// Validate reports every field with an invalid value; the error matches [ErrConfig].
func (c EFDIConfig) Validate() error {
	var e validate.Errors
	_, err := time.LoadLocation(c.Location)
	e.Check(err == nil, "Location", "must be a time zone as in Europe/Berlin that this system knows")
	validate.NotNegative(&e, "PartBytes", c.PartBytes)
	validate.NotNegative(&e, "MaxOutput", c.MaxOutput)
	e.Join("", c.ReadConfig.Validate())
	return e.Err(ErrConfig)
}

// NewEFDI returns a transform for [router.Route.Transform] that makes EFDI of TaskData: of each set first a description of
// its devices ([TypeDeviceDescription]), and then its logs ([TypeTimeLog]) in parts of bounded size, with
// [KeyLog], [KeyTask] and [KeyPart]. They belong together by a teamset context ID that is made of the
// devices and of who received them: other devices have another one. A set without devices has no description, and its time logs
// keep the teamset context ID of the message received. What EFDI has no room for is left out: see
// [efdi.MarshalTaskData] and [efdi.WriteTimeLog]; tasks and fields are not part of a device description, so a set that has nothing else makes
// no message.
//
// Time logs that differ, as those of another Location or PartBytes do, have other UUIDs. Places of a log that cannot be read are counted in [KeyFindings] of its
// parts, what else cannot be read of the set in that of the description. EFDI passes as it is, and so does a payload that has a record of
// more than PartBytes, with [KeyReadable].
func NewEFDI(config EFDIConfig) (message.HandlerFunc, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	location, err := time.LoadLocation(config.Location)
	if err != nil {
		return nil, err // Validate has loaded it
	}
	r := newReader(config.ReadConfig)
	r.logsPass = true
	return transform(r, func(ctx context.Context, to *maker, data *content.Data) error {
		if data.Form != content.TaskData {
			to.made = []*message.Message{to.received}
			return nil
		}
		for i, set := range data.Sets {
			e := &encoder{config: config, location: location, maker: to, set: set, index: strconv.Itoa(i)}
			if err := e.run(ctx); err != nil {
				return err
			}
		}
		return nil
	}), nil
}

// encoder makes the messages of a set.
type encoder struct {
	config   EFDIConfig
	location *time.Location
	maker    *maker
	set      *farmdata.Set
	index    string
	teamset  string // empty: there are no devices
	unmade   int    // findings of the set, and of logs of which there is no message
}

func (e *encoder) run(ctx context.Context) error {
	if len(e.set.Devices) > 0 {
		devices := &farmdata.Set{Header: e.set.Header, Devices: e.set.Devices}
		payload, err := efdi.MarshalTaskData(devices, efdi.EncodeConfig{Location: e.location})
		if err != nil {
			return &unreadable{err.Error()}
		}
		e.teamset = e.maker.teamsetOf(payload)
		if err := e.add(payload, TypeDeviceDescription, "-devices.bin", message.Metadata{}, e.index); err != nil {
			return err
		}
	}
	described := len(e.maker.made)
	e.unmade = len(e.set.Findings)
	for i, log := range e.set.Logs {
		if err := e.log(ctx, log, strconv.Itoa(i)); err != nil {
			return err
		}
	}
	if e.unmade > 0 && e.teamset != "" {
		e.maker.made[described-1].Metadata[KeyFindings] = strconv.Itoa(e.unmade)
	}
	return nil
}

// log makes the parts of a log. Each has the findings since the one before.
func (e *encoder) log(ctx context.Context, log *farmdata.Log, index string) error {
	names := []string{e.index, index}
	if e.teamset == "" {
		names = append(names, e.maker.received.Metadata[gateway.KeyTeamsetContextID])
	}
	limited := *log
	limited.Records = e.sized(log, bounded(ctx, log.Records, nil))
	findings, n := 0, 0
	counted := efdi.EncodeConfig{Location: e.location, Finding: func(f *farmdata.Finding) {
		findings++
		e.maker.lose(f)
	}}
	for part, err := range efdi.TimeLogs(&limited, e.config.PartBytes, counted) {
		if err != nil {
			return err
		}
		if len(part) > e.config.PartBytes {
			return e.tooLarge()
		}
		metadata := ofLog(log)
		metadata[KeyPart] = strconv.Itoa(n)
		if findings > 0 {
			metadata[KeyFindings] = strconv.Itoa(findings)
			findings = 0
		}
		ending := fmt.Sprintf("-%s-%d.bin", cmp.Or(log.Name, "log"), n)
		if err := e.add(part, TypeTimeLog, ending, metadata, append(names[:len(names):len(names)], strconv.Itoa(n))...); err != nil {
			return err
		}
		n++
	}
	e.unmade += findings
	return ctx.Err()
}

// sized yields what records does, up to a record that would take more than a part for its IDs alone: one of a megabyte, once
// in the payload, would be in memory for each value.
func (e *encoder) sized(log *farmdata.Log, records iter.Seq2[*farmdata.Record, error]) iter.Seq2[*farmdata.Record, error] {
	const longest = 32 // of those that may become numbers
	size := func(values []farmdata.Value) (sum int) {
		for _, v := range values {
			if n := len(v.Column.ElementID); n > longest {
				sum += n
			}
		}
		return sum
	}
	return func(yield func(*farmdata.Record, error) bool) {
		constants := size(log.Constants)
		for record, err := range records {
			if err == nil && constants+size(record.Values) > e.config.PartBytes {
				yield(nil, e.tooLarge())
				return
			}
			if !yield(record, err) {
				return
			}
		}
	}
}

func (e *encoder) tooLarge() error {
	return &unreadable{fmt.Sprintf("limit: a record would take more than %d bytes (part_bytes)", e.config.PartBytes)}
}

func (e *encoder) add(payload []byte, kind, ending string, metadata message.Metadata, names ...string) error {
	if e.teamset != "" {
		metadata[gateway.KeyTeamsetContextID] = e.teamset
	}
	e.maker.add(payload, kind, ending, metadata, names...)
	if e.maker.bytes > e.config.MaxOutput {
		return &unreadable{fmt.Sprintf("limit: it would take more than %d bytes as EFDI (max_output)", e.config.MaxOutput)}
	}
	return nil
}

// teamsetOf makes the ID of the teamset with a device description.
func (m *maker) teamsetOf(description []byte) string {
	digest := sha256.Sum256(description)
	name := appendParts(nil, "teamset", m.received.Metadata[gateway.KeyTenantID], m.received.Metadata[gateway.KeyReceivingEndpointID])
	return uuid.NewHash(sha256.New(), namespace, append(name, digest[:]...), 8).String()
}
