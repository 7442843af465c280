package stored

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/farmdata"
	routerfarm "github.com/agrimill/agrimill/router/farm"
)

// Why nobody but the running agrimill can say what the devices of a teamset are.
var (
	// ErrNoDevices: the configuration has no devices, so nobody remembers them.
	ErrNoDevices = errors.New("the configuration has no devices")
	// ErrDevicesInMemory: they are in the memory of the running agrimill.
	ErrDevicesInMemory = errors.New("the running agrimill has the descriptions in its memory, which no other process can read")
)

// deviceReader is a store of device descriptions that is only read.
type deviceReader struct {
	devices *routerfarm.Devices
	place   string
	close   func() error
}

// Devices are the devices of a teamset.
type Devices struct {
	// List has them; none if State is DevicesMissing.
	List []farmdata.Device
	// State is a value of farm.KeyDevices.
	State string
	// Place says where they were looked for.
	Place string
}

// Devices returns the devices of the teamset that sent a time log in EFDI, as they were then, from the store that the configuration
// names. The error matches [ErrNoDevices] or [ErrDevicesInMemory], or is that of the store, and has to be redacted before it is shown.
func (r *Reader) Devices(ctx context.Context, msg *message.Message) (Devices, error) {
	if r.devices == nil {
		opened, err := r.openDevices(ctx)
		if err != nil {
			return Devices{}, err
		}
		r.devices = opened
	}
	msg.SetContext(ctx)
	list, state, err := r.devices.devices.Lookup(msg)
	if err != nil {
		return Devices{}, fmt.Errorf("%s: %w", r.devices.place, err)
	}
	return Devices{list, state, r.devices.place}, nil
}

// openDevices opens the store of device descriptions. Nothing is created.
func (r *Reader) openDevices(ctx context.Context) (_ *deviceReader, err error) {
	if r.cfg.Devices == nil {
		return nil, ErrNoDevices
	}
	opened := &deviceReader{}
	var store routerfarm.DeviceStore
	how := config.Opening{Client: "agrimill inspect", ReadOnly: true, Once: true, Timeout: r.options.ConnectTimeout}
	switch cfg := r.cfg.Devices; {
	case cfg.NATSKV != nil:
		opened.place = fmt.Sprintf("bucket %s (devices.nats_kv)", printable(cfg.NATSKV.Bucket))
		store, opened.close, err = cfg.NATSKV.Open(ctx, how)
	case cfg.Kafka != nil:
		opened.place = fmt.Sprintf("topic %s (devices.kafka)", printable(cfg.Kafka.Topic))
		store, opened.close, err = cfg.Kafka.Open(ctx, how)
	default:
		return nil, ErrDevicesInMemory
	}
	if err == nil {
		opened.devices, err = routerfarm.NewDevices(routerfarm.DevicesConfig{Store: store})
	}
	if err != nil {
		if opened.close != nil {
			err = errors.Join(err, opened.close())
		}
		return nil, fmt.Errorf("%s: %w", opened.place, err)
	}
	return opened, nil
}
