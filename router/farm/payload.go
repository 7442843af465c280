package farm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/efdi"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/farmfile"
	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/router"
)

// ErrConfig is matched by the errors of constructors and Validate methods.
var ErrConfig = final.New("farm: invalid configuration")

// Metadata of messages that went through a filter or a transform.
const (
	// KeyReadable is "no" on a message whose payload could not be read, or not far
	// enough to decide, and "partly" on what was made of a payload of which a part could not be read.
	KeyReadable = "x-farm-readable"
	// KeyReason says why not. It has no content of the payload.
	KeyReason = "x-farm-reason"
)

// Values of [KeyReadable].
const (
	ReadableNo     = "no"
	ReadablePartly = "partly"
)

// Defaults of [ReadConfig].
const (
	DefaultMaxBytes = 64 << 20
	DefaultMaxTime  = time.Minute
)

// ReadConfig limits what reading a payload may cost.
type ReadConfig struct {
	// MaxBytes is the largest payload that is read, into memory. 0 means [DefaultMaxBytes];
	// negative is an error.
	MaxBytes int64 `yaml:"max_bytes" unit:"bytes"`
	// MaxTime is how long reading what is in a payload may take. 0 means
	// [DefaultMaxTime]; negative is an error.
	MaxTime time.Duration `yaml:"max_time"`
	// Payloads opens payloads that are in a claim check. Without it they cannot be read. Those that
	// are still with the service need none.
	Payloads gateway.PayloadOpener `yaml:"-"`
	// Devices knows what the numbers in EFDI time logs are. Nil means that nothing does.
	Devices *Devices `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults.
func (c ReadConfig) WithDefaults() ReadConfig {
	c.MaxBytes, c.MaxTime = cmp.Or(c.MaxBytes, DefaultMaxBytes), cmp.Or(c.MaxTime, DefaultMaxTime)
	return c
}

// Validate reports every field with an invalid value; the error matches [ErrConfig].
func (c ReadConfig) Validate() error {
	var e validate.Errors
	validate.NotNegative(&e, "MaxBytes", c.MaxBytes)
	validate.NotNegative(&e, "MaxTime", c.MaxTime)
	return e.Err(ErrConfig)
}

// unreadable says why a payload cannot be read. It is nobody's failure: the same bytes
// will never be readable.
type unreadable struct{ reason string }

// Error returns the reason.
func (u *unreadable) Error() string { return ErrUnreadable.Error() + ": " + u.reason }

// Is reports whether target is ErrUnreadable.
func (u *unreadable) Is(target error) bool { return target == ErrUnreadable }

// reader reads payloads, several at a time.
type reader struct {
	config ReadConfig
	slots  chan struct{}
	// logsPass says that EFDI time logs are not decoded, so nobody needs their devices.
	logsPass bool
}

func newReader(config ReadConfig) *reader {
	return &reader{config: config.WithDefaults(), slots: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

// opened is a payload that was opened.
type opened struct {
	payload []byte
	data    *content.Data
	devices string // a value of KeyDevices; empty for what does not need them
}

// use opens the payload of a message for f, which has MaxTime from ctx to read it. The error is
// an *unreadable, or one by which the message is to be retried.
func (r *reader) use(msg *message.Message, f func(ctx context.Context, o opened) error) error {
	if r.config.Devices == nil {
		return r.inTurn(msg, content.Config{}, f)
	}
	// What is with others is asked for, and waited for, without a turn.
	var config content.Config
	var state string
	var err error
	isLog := !r.logsPass && messages[msg.Metadata[gateway.KeyMessageType]] == efdi.TimeLog
	if isLog {
		if config.EFDI.Devices, state, err = r.config.Devices.of(msg); err != nil {
			return err
		}
	}
	var description []byte
	again := false
	read := func(ctx context.Context, o opened) error {
		switch {
		case o.data.Form == content.EFDITimeLog && r.logsPass:
		case o.data.Form == content.EFDITimeLog && state == "": // it has another type
			again = true
			return nil
		case o.data.Form == content.EFDITimeLog:
			o.devices = state
			o.data.Sets[0].Devices = append(o.data.Sets[0].Devices, config.EFDI.Devices...)
		case describes(o.data):
			description = o.payload
		}
		return f(ctx, o)
	}
	err = r.inTurn(msg, config, read)
	if err == nil && again {
		if config.EFDI.Devices, state, err = r.config.Devices.of(msg); err == nil {
			err = r.inTurn(msg, config, read)
		}
	}
	if err == nil && description != nil {
		err = r.config.Devices.learn(msg, description)
	}
	return err
}

// inTurn calls f with the payload of a message, opened, when there is a slot for it.
func (r *reader) inTurn(msg *message.Message, config content.Config, f func(ctx context.Context, o opened) error) error {
	return r.withPayload(msg, func(ctx context.Context, payload []byte) error {
		data, err := open(ctx, payload, msg.Metadata[gateway.KeyMessageType], config)
		switch {
		case err == nil && nothingRead(data):
			return &unreadable{data.Unread().Error()}
		case err == nil:
			return f(ctx, opened{payload: payload, data: data})
		case ctx.Err() == nil: // it is in memory, so nothing but the data can be wrong
			return &unreadable{err.Error()}
		}
		return err
	})
}

// withPayload calls f with the payload of a message when there is a slot for it.
func (r *reader) withPayload(msg *message.Message, f func(ctx context.Context, payload []byte) error) error {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-msg.Context().Done():
		return msg.Context().Err()
	}
	payload, err := r.payload(msg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(msg.Context(), r.config.MaxTime)
	defer cancel()
	err = f(ctx, payload)
	if errors.Is(err, context.DeadlineExceeded) && msg.Context().Err() == nil {
		return &unreadable{fmt.Sprintf("limit: reading takes longer than %s (max_time)", r.config.MaxTime)}
	}
	return err
}

// nothingRead reports whether data have nothing because it could not be read, as an encrypted archive has.
func nothingRead(data *content.Data) bool {
	return data.Unread() != nil && !slices.ContainsFunc(data.Sets, func(s *farmdata.Set) bool {
		rest := *s
		rest.Path, rest.Findings = "", nil
		return !reflect.ValueOf(rest).IsZero()
	})
}

// payload returns the payload of a message, wherever it is.
func (r *reader) payload(msg *message.Message) ([]byte, error) {
	mode := msg.Metadata[gateway.KeyPayloadMode]
	if mode == "" || len(msg.Payload) > 0 {
		if int64(len(msg.Payload)) > r.config.MaxBytes {
			return nil, r.tooLarge()
		}
		return msg.Payload, nil
	}
	open := payloadref.Find(msg.Context(), msg.Metadata, r.config.Payloads)
	if open == nil {
		return nil, &unreadable{"it is not in the message, and there is nothing to open it with (" + gateway.KeyPayloadMode + ": " + mode + ")"}
	}
	payload, size, err := open(msg.Context())
	if err != nil {
		return nil, fmt.Errorf("opening the payload: %w", outage(err))
	}
	defer func() { _ = payload.Close() }() // reading tells every error that matters
	if size > r.config.MaxBytes {
		return nil, r.tooLarge()
	}
	b, err := io.ReadAll(io.LimitReader(payload, r.config.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading the payload: %w", outage(err))
	}
	if int64(len(b)) > r.config.MaxBytes {
		return nil, r.tooLarge()
	}
	return b, nil
}

func (r *reader) tooLarge() error {
	return &unreadable{fmt.Sprintf("limit: larger than %d bytes (max_bytes)", r.config.MaxBytes)}
}

// outage makes an outage of an error that says nothing about its class: where payloads are
// kept is down, and the message is not to blame.
func outage(err error) error {
	var own router.Classified
	if router.ClassOf(err) == router.ClassHandler && !errors.As(err, &own) {
		return router.Outage(err)
	}
	return err
}

// messages are the types of messages whose payload is EFDI.
var messages = map[string]efdi.Message{
	"iso:11783:-10:time_log:protobuf":           efdi.TimeLog,
	"iso:11783:-10:device_description:protobuf": efdi.TaskData,
	"gps:info": efdi.GPSList,
}

// open opens a payload as what its type says, otherwise as what it looks like.
func open(ctx context.Context, payload []byte, messageType string, config content.Config) (*content.Data, error) {
	if message, ok := messages[messageType]; ok {
		data, err := content.OpenEFDI(ctx, bytes.NewReader(payload), int64(len(payload)), message, config)
		if err == nil && empty(ctx, data) { // as it seems if the type is that of another message
			if other, err := content.Open(ctx, bytes.NewReader(payload), int64(len(payload)), config); err == nil && !empty(ctx, other) {
				return other, nil
			}
		}
		if err == nil {
			return data, nil
		}
	}
	return content.Open(ctx, bytes.NewReader(payload), int64(len(payload)), config)
}

// empty reports whether a message of EFDI has no record, and nothing else but its header.
func empty(ctx context.Context, data *content.Data) bool {
	rest := *data.Sets[0]
	for _, log := range rest.Logs {
		for _, err := range bounded(ctx, log.Records, nil) {
			if err == nil {
				return false
			}
		}
	}
	tasks := len(rest.Tasks)
	rest.Header, rest.Logs, rest.Tasks, rest.Findings = farmdata.Header{}, nil, nil, nil
	return tasks == 0 && reflect.ValueOf(rest).IsZero()
}

// mark notes on messages that the payload that they were made of could not be read, or only partly.
func mark(messages []*message.Message, readable, reason string) {
	for _, m := range messages {
		if m == nil {
			continue
		}
		if m.Metadata == nil {
			m.Metadata = message.Metadata{}
		}
		m.Metadata[KeyReadable], m.Metadata[KeyReason] = readable, clean(reason)
	}
}

// clean makes a text fit for metadata: it has names of files and IDs that stand in the data.
func clean(text string) string {
	const longest = 300
	runes := []rune(farmfile.Printable(text))
	return string(runes[:min(len(runes), longest)])
}
