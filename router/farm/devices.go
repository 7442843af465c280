package farm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/efdi"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/fairlru"
	"github.com/agrimill/agrimill/internal/isotime"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/ratelog"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/router"
)

// KeyDevices is in the metadata of what is made of an EFDI time log with
// [ReadConfig.Devices]: one of the values below.
const KeyDevices = "x-farm-devices"

// Values of [KeyDevices].
const (
	// DevicesDescribed: there is one description of the teamset. What it says nothing about is told: see
	// [BatchHeader.Findings] and [KeyFindings].
	DevicesDescribed = "described"
	// DevicesAmbiguous: the teamset was described in different ways, which is more than other bytes for the same
	// devices. The description that was sent last before the log was used, or the first one if all were sent after it.
	DevicesAmbiguous = "ambiguous"
	// DevicesMissing: there was no description after [DevicesConfig.Wait]. Values are raw and
	// without names.
	DevicesMissing = "missing"
)

// Defaults of [DevicesConfig].
const DefaultDevicesWait = 30 * time.Second

// ErrNoDevices is matched by the error of a time log that waits for the device description of
// its teamset. Its class is [router.ClassRedeliver]: the message comes again.
var ErrNoDevices = router.WithClass(errors.New("the device description of the teamset has not arrived yet"), router.ClassRedeliver)

const (
	// maxWaiting is how many teamsets may wait for their descriptions, and maxWaitingOfOne how
	// many of one tenant, so that it leaves room for others.
	maxWaiting      = 10_000
	maxWaitingOfOne = 1_000
	// waitAgainAfter is after how long time logs of a teamset without a description wait again.
	waitAgainAfter = 10 * time.Minute
	// maxParsed bounds the descriptions that are kept as they were read, by the size of their payloads.
	maxParsed = 16 << 20
	// waitAtOnce is how long a message waits at a time whose subscriber cannot put it off.
	waitAtOnce = 500 * time.Millisecond
	// maxPutOff and minPutOff bound how long a message is put off at a time.
	maxPutOff = 2 * time.Second
	minPutOff = 50 * time.Millisecond
)

// DeviceDescription is an EFDI message with the devices of a teamset.
type DeviceDescription struct {
	// Sent is when it was sent; zero if that is unknown.
	Sent time.Time
	// Payload is the message. It must not be modified.
	Payload []byte
	// Tenant is that of the teamset, for stores that divide their memory among tenants; they may return it or
	// not.
	Tenant string
}

// DeviceStore keeps the device descriptions of teamsets. It must be safe for concurrent
// use. Calls end with their context. Package devicestoretest has a suite for implementations.
type DeviceStore interface {
	// Put adds a description, and returns when it is as durable as the store keeps it. One that the
	// store has of this teamset, sent at the same time, is not added again. The same payload at another time is: what
	// was described in between holds no longer. A store may bound how many it has of a teamset.
	Put(ctx context.Context, teamset string, description DeviceDescription) error
	// Get returns what the store has of a teamset, in any order. Nothing is no error.
	Get(ctx context.Context, teamset string) ([]DeviceDescription, error)
}

// DevicesConfig configures [NewDevices].
type DevicesConfig struct {
	// Store keeps the descriptions. Required.
	Store DeviceStore `yaml:"-"`
	// Wait is how long the time logs of a teamset wait for its description. After that they are
	// decoded without, for ten minutes or until it is there. 0 means [DefaultDevicesWait];
	// negative means that they do not wait.
	Wait time.Duration `yaml:"wait"`
	// Logger gets warnings of teamsets without a description or with several. Nil means
	// nobody.
	Logger watermill.LoggerAdapter `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults.
func (c DevicesConfig) WithDefaults() DevicesConfig {
	c.Wait = cmp.Or(c.Wait, DefaultDevicesWait)
	c.Logger = warnlog.Or(c.Logger)
	return c
}

// Validate reports every field with an invalid value; the error matches [ErrConfig].
func (c DevicesConfig) Validate() error {
	var e validate.Errors
	e.Check(c.Store != nil, "Store", "is required")
	return e.Err(ErrConfig)
}

// Devices knows the devices of teamsets: what the EFDI messages that describe them said. A time
// log of EFDI has numbers only; their names, units and scales are in the description,
// a message of its own that was sent before it. Give it to everything that reads payloads, as
// [ReadConfig.Devices]: what takes a description learns it before it is acknowledged, and what takes a time
// log looks for the description, and waits for it if it is not there yet.
//
// A teamset is told by tenant (or, if the service does not name that, by receiving endpoint) and teamset context ID: a
// received message does not name its sender.
// A sender gives it a new ID when its machines change; if one does not, or several senders use the
// same ID or none, [KeyDevices] says so, and a warning is logged.
//
// While a time log waits, it occupies nothing if agrimill's subscriber delivered it; others of
// its key wait with it, and a description among them is read ahead. Methods are safe for concurrent use.
type Devices struct {
	config   DevicesConfig
	readOnly bool // neither learns nor waits

	parsed *fairlru.Cache[parsedKey, []farmdata.Device]

	mu      sync.Mutex
	waiting map[string]waitingTeamset

	redescribed      atomic.Int64
	without, several ratelog.Line
}

// parsedKey names a description of a tenant by the digest of its payload.
type parsedKey struct {
	tenant string
	digest [sha256.Size]byte
}

// waitingTeamset is a teamset without a description.
type waitingTeamset struct {
	since  time.Time
	tenant string
}

// NewDevices returns Devices. The error matches [ErrConfig].
func NewDevices(config DevicesConfig) (*Devices, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &Devices{
		config: config.WithDefaults(), parsed: fairlru.New[parsedKey, []farmdata.Device](maxParsed),
		waiting: map[string]waitingTeamset{},
	}, nil
}

// ReadOnly returns Devices with the same store, for whoever only shows messages: what takes a description does not
// store it, and what takes a time log does not wait for one, and does without if the store cannot be asked.
func (d *Devices) ReadOnly() *Devices {
	return &Devices{config: d.config, readOnly: true, parsed: d.parsed, waiting: map[string]waitingTeamset{}}
}

// Waiting returns how many teamsets have time logs that wait for a description, or were
// decoded without within the last ten minutes.
func (d *Devices) Waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sweep(time.Now(), "")
	return len(d.waiting)
}

// Redescribed returns how many descriptions were stored that say something else than those that the
// store had of their teamset. Its time logs may have been decoded with the wrong names and scales.
func (d *Devices) Redescribed() int64 { return d.redescribed.Load() }

// teamset returns what identifies the teamset of a message. A service may leave the tenant out; its endpoint has only one.
func teamset(m message.Metadata) string {
	if m[gateway.KeyTenantID] == "" && m[gateway.KeyReceivingEndpointID] != "" {
		return router.KeyOf("farm teamset of an endpoint", m[gateway.KeyReceivingEndpointID], m[gateway.KeyTeamsetContextID]).String()
	}
	return router.KeyOf("farm teamset", m[gateway.KeyTenantID], m[gateway.KeyTeamsetContextID]).String()
}

// sent returns when a message was sent, or else when the broker stored it that it comes from; zero if
// nobody knows.
func sent(msg *message.Message) time.Time {
	at, ok := isotime.Parse([]byte(msg.Metadata[gateway.KeySentTimestamp]))
	if !ok || at.IsZero() {
		return msgctx.Stored(msg.Context())
	}
	return at
}

// describes reports whether data describe devices for time logs.
func describes(data *content.Data) bool {
	return data.Form == content.EFDITaskData && slices.ContainsFunc(data.Sets, func(s *farmdata.Set) bool { return len(s.Devices) > 0 })
}

// learn stores the description that a message is.
func (d *Devices) learn(msg *message.Message, payload []byte) error {
	if d.readOnly {
		return nil
	}
	team := teamset(msg.Metadata)
	one := DeviceDescription{Sent: sent(msg), Payload: payload, Tenant: msg.Metadata[gateway.KeyTenantID]}
	known, err := d.config.Store.Get(msg.Context(), team)
	if err == nil {
		err = d.add(msg, team, known, one)
	}
	if err != nil {
		return fmt.Errorf("storing the device description: %w", outage(err))
	}
	d.arrived(team)
	return nil
}

// add stores a description beside those that are known, and tells if it says something else.
func (d *Devices) add(msg *message.Message, team string, known []DeviceDescription, one DeviceDescription) error {
	same := slices.IndexFunc(known, func(k DeviceDescription) bool { return d.same(one.Tenant, k.Payload, one.Payload) })
	if same >= 0 {
		one.Payload = known[same].Payload // of two encodings, one is kept
	}
	if slices.ContainsFunc(known, func(k DeviceDescription) bool { return k.Sent.Equal(one.Sent) && samePayload(k, one) }) {
		return nil
	}
	if err := d.config.Store.Put(msg.Context(), team, one); err != nil {
		return err
	}
	if len(known) > 0 && same < 0 {
		d.redescribed.Add(1)
		if suppressed, ok := d.several.Next(); ok {
			warnlog.Warn(d.config.Logger, "a teamset was described in another way; its time logs may be decoded with the wrong names and scales",
				fields(msg, watermill.LogFields{ratelog.Field: suppressed, "descriptions": len(known) + 1}))
		}
	}
	return nil
}

// same reports whether two payloads describe the same devices.
func (d *Devices) same(tenant string, a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	devices := d.read(tenant, a)
	return len(devices) > 0 && reflect.DeepEqual(devices, d.read(tenant, b))
}

// of returns what Lookup does, and waits for a description that is missing.
func (d *Devices) of(msg *message.Message) (devices []farmdata.Device, state string, err error) {
	ctx := msg.Context()
	for again := true; again; again = errors.Is(err, ErrNoDevices) && msgctx.Replayed(ctx) && ctx.Err() == nil {
		devices, state, err = d.lookUpOrWait(msg)
	}
	return devices, state, err
}

// lookUpOrWait is of for a message that comes again after an ErrNoDevices.
func (d *Devices) lookUpOrWait(msg *message.Message) ([]farmdata.Device, string, error) {
	devices, state, err := d.Lookup(msg)
	if err == nil && state == DevicesMissing && !d.readOnly {
		var learned bool
		if learned, err = d.learnBehind(msg); learned {
			devices, state, err = d.Lookup(msg)
		}
	}
	switch {
	case d.readOnly && err != nil:
		return nil, DevicesMissing, nil
	case d.readOnly || err != nil:
	case state == DevicesMissing:
		err = d.await(msg, teamset(msg.Metadata))
	default:
		d.arrived(teamset(msg.Metadata))
	}
	return devices, state, err
}

// learnBehind stores the descriptions of the teamset of a time log that are behind it in its key, where each would wait
// until the log has waited long enough. They are delivered in their turn all the same. It reports whether there was one.
func (d *Devices) learnBehind(log *message.Message) (learned bool, err error) {
	nack := msgctx.NackOf(log.Context())
	if nack == nil || nack.Follows == nil {
		return false, nil
	}
	team := teamset(log.Metadata)
	for _, msg := range nack.Follows.Following(TypeDeviceDescription) {
		if teamset(msg.Metadata) != team || len(d.read(msg.Metadata[gateway.KeyTenantID], msg.Payload)) == 0 {
			continue
		}
		msg.SetContext(log.Context())
		if err := d.learn(msg, msg.Payload); err != nil {
			return false, err
		}
		learned = true
	}
	return learned, nil
}

// Lookup returns the devices of the teamset that sent a time log, which its metadata names, as they were when it was sent, and a
// value of [KeyDevices]. It asks the store, and neither waits for a description nor changes anything. The error is
// that of the store. The result must not be modified.
func (d *Devices) Lookup(msg *message.Message) ([]farmdata.Device, string, error) {
	tenant := msg.Metadata[gateway.KeyTenantID]
	known, err := d.config.Store.Get(msg.Context(), teamset(msg.Metadata))
	if err != nil {
		return nil, "", fmt.Errorf("looking for the device description: %w", outage(err))
	}
	if len(known) == 0 {
		return nil, DevicesMissing, nil
	}
	chosen, state := choose(known, sent(msg)).Payload, DevicesDescribed
	if slices.ContainsFunc(known, func(k DeviceDescription) bool { return !d.same(tenant, k.Payload, chosen) }) {
		state = DevicesAmbiguous
	}
	devices := d.read(tenant, chosen)
	if len(devices) == 0 {
		state = DevicesMissing // it cannot be read here
	}
	return devices, state, nil
}

// choose returns the description that was sent last before the log, or else the first one; the last one
// if it is unknown when the log was sent.
func choose(known []DeviceDescription, log time.Time) DeviceDescription {
	slices.SortFunc(known, compareDescriptions) // so that every process chooses the same
	chosen := known[0]
	for _, k := range known[1:] {
		if log.IsZero() || !k.Sent.After(log) {
			chosen = k
		}
	}
	return chosen
}

// read returns the devices of a description.
func (d *Devices) read(tenant string, payload []byte) []farmdata.Device {
	key := parsedKey{tenant, sha256.Sum256(payload)}
	devices, ok := d.parsed.Get(key)
	if ok {
		return devices
	}
	// What cannot be read was stored by another version. What is remembered depends on no message's context.
	if set, err := efdi.Open(context.Background(), bytes.NewReader(payload), int64(len(payload)), efdi.TaskData, efdi.Config{}); err == nil {
		devices = set.Devices
	}
	d.parsed.Put(tenant, key, devices, int64(len(payload))+64)
	return devices
}

// await has a time log come again until its teamset has waited long enough.
func (d *Devices) await(msg *message.Message, team string) error {
	now := time.Now()
	d.mu.Lock()
	one, waits := d.waiting[team]
	if !waits {
		one = waitingTeamset{now, msg.Metadata[gateway.KeyTenantID]}
		if d.sweep(now, one.tenant) >= maxWaitingOfOne || len(d.waiting) >= maxWaiting {
			d.mu.Unlock()
			return nil // others wait already, and their memory is bounded
		}
		d.waiting[team] = one
	}
	d.mu.Unlock()
	waited := now.Sub(one.since)
	left := d.config.Wait - waited
	if left <= 0 {
		if suppressed, ok := d.without.Next(); ok {
			warnlog.Warn(d.config.Logger, "no device description of a teamset has arrived; its time logs are decoded without names, units and scales",
				fields(msg, watermill.LogFields{ratelog.Field: suppressed, "waited": waited}))
		}
		return nil
	}
	delay := min(left, max(waited/2, minPutOff), maxPutOff)
	if nack := msgctx.NackOf(msg.Context()); nack != nil {
		nack.After(delay)
		return ErrNoDevices
	}
	// Whoever delivered it would deliver it again at once.
	pause := time.NewTimer(min(left, waitAtOnce))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-msg.Context().Done():
	}
	return ErrNoDevices
}

// sweep forgets teamsets that may wait again, and returns how many of a tenant still wait. d.mu is held.
func (d *Devices) sweep(now time.Time, tenant string) (waiting int) {
	for team, one := range d.waiting {
		switch {
		case now.Sub(one.since) > max(d.config.Wait, 0)+waitAgainAfter:
			delete(d.waiting, team)
		case one.tenant == tenant:
			waiting++
		}
	}
	return waiting
}

// arrived notes that a teamset has a description.
func (d *Devices) arrived(team string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waiting, team)
}

// fields adds what identifies the teamset to log fields.
func fields(msg *message.Message, fields watermill.LogFields) watermill.LogFields {
	fields["tenant"], fields["teamset"] = msg.Metadata[gateway.KeyTenantID], clean(msg.Metadata[gateway.KeyTeamsetContextID])
	return fields
}
