package pipeline

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/router/farm"
	kafkadevices "github.com/agrimill/agrimill/stores/kafka/devicestore"
	natsdevices "github.com/agrimill/agrimill/stores/nats/devicestore"
)

// devices are the device descriptions of teamsets. They belong to the pipeline.
type devices struct {
	known *farm.Devices       // nil: none
	later *later[deviceStore] // nil if there is nothing to open
}

// deviceStore is a store that outlives the process.
type deviceStore interface {
	farm.DeviceStore
	Close() error
}

// devicesInNATS is a store with its connection.
type devicesInNATS struct {
	*natsdevices.Store
	conn *natsgo.Conn
}

// newDevices creates the store of device descriptions. One in NATS is opened when it becomes
// reachable.
func (p *Pipeline) newDevices(cfg *config.Devices) (d devices, err error) {
	if cfg == nil {
		return devices{}, nil
	}
	c := cfg.DevicesConfig
	c.Logger = p.libraryLogger(p.logger.With("part", "devices"))
	switch {
	case cfg.NATSKV != nil:
		if _, err := cfg.NATSKV.TLS.Config(); err != nil {
			return devices{}, fmt.Errorf("devices: %w", err)
		}
		d.later = newLater(func(ctx context.Context) (deviceStore, error) { return openDevices(ctx, cfg.NATSKV, c.Logger) }, deviceStore.Close, p.logger.With("part", "devices"))
		c.Store = laterDevices{d.later}
	case cfg.Kafka != nil:
		storeConfig, err := cfg.Kafka.StoreConfig()
		if err != nil {
			return devices{}, fmt.Errorf("devices: %w", err)
		}
		storeConfig.Logger = c.Logger
		open := func(ctx context.Context) (deviceStore, error) {
			store, err := kafkadevices.New(ctx, storeConfig)
			if err != nil {
				return nil, err // and no nil pointer in an interface
			}
			return store, nil
		}
		d.later = newLater(open, deviceStore.Close, p.logger.With("part", "devices"))
		c.Store = laterDevices{d.later}
	default:
		if c.Store, err = farm.NewMemoryDevices(farm.MemoryDevicesConfig{}); err != nil {
			return devices{}, fmt.Errorf("devices: %w", err)
		}
	}
	if d.known, err = farm.NewDevices(c); err != nil {
		return devices{}, fmt.Errorf("devices: %w", err)
	}
	return d, nil
}

func openDevices(ctx context.Context, cfg *config.DevicesInNATS, logger watermill.LoggerAdapter) (deviceStore, error) {
	conn, err := cfg.Connect("agrimill devices")
	if err != nil {
		return nil, err
	}
	storeConfig := cfg.StoreConfig()
	storeConfig.Conn, storeConfig.Logger = conn, logger
	store, err := natsdevices.New(ctx, storeConfig)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return devicesInNATS{store, conn}, nil
}

// Close closes the connection.
func (d devicesInNATS) Close() error {
	d.conn.Close()
	return nil
}

// open opens the store in the background, until ctx ends or shut is called.
func (d devices) open(ctx context.Context) {
	if d.later != nil {
		d.later.start(ctx, func(deviceStore) {})
	}
}

// shut closes the store.
func (d devices) shut(ctx context.Context) {
	if d.later == nil {
		return
	}
	if store, ok := d.later.shut(ctx); ok {
		_ = store.Close()
	}
}

// laterDevices is a store that may not be open yet, which is an outage.
type laterDevices struct{ *later[deviceStore] }

// Put implements farm.DeviceStore.
func (l laterDevices) Put(ctx context.Context, teamset string, description farm.DeviceDescription) error {
	store, err := l.get()
	if err != nil {
		return err
	}
	return store.Put(ctx, teamset, description)
}

// Get implements farm.DeviceStore.
func (l laterDevices) Get(ctx context.Context, teamset string) ([]farm.DeviceDescription, error) {
	store, err := l.get()
	if err != nil {
		return nil, err
	}
	return store.Get(ctx, teamset)
}
