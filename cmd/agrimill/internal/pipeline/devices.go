package pipeline

import (
	"context"
	"fmt"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/internal/opening"
	"github.com/agrimill/agrimill/router/farm"
)

type devices struct {
	known *farm.Devices                    // nil: none
	later *opening.Later[farm.DeviceStore] // nil if there is nothing to open
}

// newDevices creates the store of device descriptions. One in NATS is opened when it becomes
// reachable.
func (p *Pipeline) newDevices(cfg *config.Devices) (d devices, err error) {
	if cfg == nil {
		return devices{}, nil
	}
	c := cfg.DevicesConfig
	c.Logger = p.libraryLogger(p.logger.With("part", "devices"))
	how := config.Opening{Client: "agrimill devices", Logger: c.Logger}
	switch {
	case cfg.NATSKV != nil:
		d.later = opening.NewLater(func(ctx context.Context) (farm.DeviceStore, func() error, error) { return cfg.NATSKV.Open(ctx, how) }, c.Logger)
	case cfg.Kafka != nil:
		d.later = opening.NewLater(func(ctx context.Context) (farm.DeviceStore, func() error, error) { return cfg.Kafka.Open(ctx, how) }, c.Logger)
	default:
		c.Store, err = farm.NewMemoryDevices(farm.MemoryDevicesConfig{})
	}
	if d.later != nil {
		c.Store = laterDevices{d.later}
	}
	if err == nil {
		d.known, err = farm.NewDevices(c)
	}
	if err != nil {
		return devices{}, fmt.Errorf("devices: %w", err)
	}
	return d, nil
}

// laterDevices is a store that may not be open yet, which is an outage.
type laterDevices struct {
	*opening.Later[farm.DeviceStore]
}

// Put implements farm.DeviceStore.
func (l laterDevices) Put(ctx context.Context, teamset string, description farm.DeviceDescription) error {
	store, err := l.Later.Get()
	if err != nil {
		return err
	}
	return store.Put(ctx, teamset, description)
}

// Get implements farm.DeviceStore.
func (l laterDevices) Get(ctx context.Context, teamset string) ([]farm.DeviceDescription, error) {
	store, err := l.Later.Get()
	if err != nil {
		return nil, err
	}
	return store.Get(ctx, teamset)
}
