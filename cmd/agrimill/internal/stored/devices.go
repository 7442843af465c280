package stored

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/farmdata"
	routerfarm "github.com/agrimill/agrimill/router/farm"
	kafkadevices "github.com/agrimill/agrimill/stores/kafka/devicestore"
	natsdevices "github.com/agrimill/agrimill/stores/nats/devicestore"
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
	switch cfg := r.cfg.Devices; {
	case cfg.NATSKV != nil:
		storeConfig := cfg.NATSKV.StoreConfig().WithDefaults()
		storeConfig.ReadOnly = true
		opened.place = fmt.Sprintf("bucket %s (devices.nats_kv)", printable(storeConfig.Bucket))
		if storeConfig.Conn, err = r.connectDevices(); err != nil {
			return nil, fmt.Errorf("%s: %w", opened.place, err)
		}
		opened.close = func() error {
			storeConfig.Conn.Close()
			return nil
		}
		store, err = natsdevices.New(ctx, storeConfig)
	case cfg.Kafka != nil:
		storeConfig, configErr := cfg.Kafka.StoreConfig()
		if configErr != nil {
			return nil, configErr
		}
		storeConfig = storeConfig.WithDefaults()
		storeConfig.ReadOnly = true
		if r.options.ConnectTimeout > 0 {
			storeConfig.ConnectTimeout = r.options.ConnectTimeout
		}
		opened.place = fmt.Sprintf("topic %s (devices.kafka)", printable(storeConfig.Topic))
		kafkaStore, kafkaErr := kafkadevices.New(ctx, storeConfig)
		if err = kafkaErr; err == nil {
			store, opened.close = kafkaStore, kafkaStore.Close
		}
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

// connectDevices connects to the bucket of device descriptions.
func (r *Reader) connectDevices() (*natsgo.Conn, error) {
	cfg := *r.cfg.Devices.NATSKV
	if r.options.ConnectTimeout > 0 {
		cfg.ConnectTimeout = r.options.ConnectTimeout
	}
	return cfg.Connect("agrimill inspect", natsgo.NoReconnect())
}
