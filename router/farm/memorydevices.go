package farm

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/agrimill/agrimill/internal/fairlru"
	"github.com/agrimill/agrimill/internal/timeline"
	"github.com/agrimill/agrimill/internal/validate"
)

// DefaultMaxMemory is the default of [MemoryDevicesConfig.MaxMemory].
const DefaultMaxMemory = 64 << 20

// maxDescriptions is how many descriptions a MemoryDevices keeps of a teamset.
const maxDescriptions = 16

// MemoryDevicesConfig configures [NewMemoryDevices].
type MemoryDevicesConfig struct {
	// MaxMemory bounds the descriptions. Of the tenant that has most, the teamsets that were not used for the
	// longest time are forgotten first. 0 means [DefaultMaxMemory]; negative is an error.
	MaxMemory int64
}

// WithDefaults returns the configuration with its defaults.
func (c MemoryDevicesConfig) WithDefaults() MemoryDevicesConfig {
	c.MaxMemory = cmp.Or(c.MaxMemory, DefaultMaxMemory)
	return c
}

// Validate reports every field with an invalid value; the error matches [ErrConfig].
func (c MemoryDevicesConfig) Validate() error {
	var e validate.Errors
	validate.NotNegative(&e, "MaxMemory", c.MaxMemory)
	return e.Err(ErrConfig)
}

// MemoryDevices is a [DeviceStore] in the process: what it knows is gone with it, and descriptions that
// were confirmed do not come again. It keeps at most 16 descriptions of a teamset: of those that say the same as the ones
// before and after them any, and else those that were sent last. It counts 64 bytes for each beside its payload.
//
// Tenants share the memory: one that has many teamsets forgets its own, as long as it has more than others.
type MemoryDevices struct {
	config MemoryDevicesConfig

	mu    sync.Mutex // held from the reading to the writing of a teamset
	known *fairlru.Cache[string, []DeviceDescription]
}

var _ DeviceStore = (*MemoryDevices)(nil)

// NewMemoryDevices returns a store without descriptions. The error matches [ErrConfig].
func NewMemoryDevices(config MemoryDevicesConfig) (*MemoryDevices, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	return &MemoryDevices{config: config, known: fairlru.New[string, []DeviceDescription](config.MaxMemory)}, nil
}

// size is how much memory descriptions take. Those that say the same share their payload.
func size(list []DeviceDescription) (n int64) {
	for i, d := range list {
		n += 64
		if !slices.ContainsFunc(list[:i], func(other DeviceDescription) bool { return bytes.Equal(other.Payload, d.Payload) }) {
			n += int64(len(d.Payload))
		}
	}
	return n
}

func compareDescriptions(a, b DeviceDescription) int {
	return cmp.Or(a.Sent.Compare(b.Sent), bytes.Compare(a.Payload, b.Payload))
}

func samePayload(a, b DeviceDescription) bool { return bytes.Equal(a.Payload, b.Payload) }

// Put implements [DeviceStore]. It does not block. A description larger than MaxMemory is not
// kept.
func (m *MemoryDevices) Put(_ context.Context, key string, description DeviceDescription) error {
	if size([]DeviceDescription{description}) > m.config.MaxMemory {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known, _ := m.known.Get(key)
	list, added := timeline.Add(known, description, compareDescriptions, samePayload, maxDescriptions)
	if !added {
		return nil
	}
	at := slices.IndexFunc(list, func(d DeviceDescription) bool { return compareDescriptions(d, description) == 0 })
	if i := slices.IndexFunc(known, func(d DeviceDescription) bool { return samePayload(d, description) }); at >= 0 && i >= 0 {
		list[at].Payload = known[i].Payload
	} else if at >= 0 {
		list[at].Payload = bytes.Clone(description.Payload)
	}
	for size(list) > m.config.MaxMemory {
		list = list[1:]
	}
	m.known.Put(description.Tenant, key, list, size(list))
	return nil
}

// Get implements [DeviceStore]. It does not block.
func (m *MemoryDevices) Get(_ context.Context, key string) ([]DeviceDescription, error) {
	list, _ := m.known.Get(key)
	return slices.Clone(list), nil
}
