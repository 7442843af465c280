package farm

import (
	"bytes"
	"cmp"
	"container/list"
	"context"
	"slices"
	"sync"

	"github.com/agrimill/agrimill/internal/validate"
)

// DefaultMaxMemory is the default of [MemoryDevicesConfig.MaxMemory].
const DefaultMaxMemory = 64 << 20

// maxDescriptions is how many descriptions a MemoryDevices keeps of a teamset.
const maxDescriptions = 16

// MemoryDevicesConfig configures [NewMemoryDevices].
type MemoryDevicesConfig struct {
	// MaxMemory bounds the descriptions. The teamsets that were not used for the longest time are
	// forgotten first. 0 means [DefaultMaxMemory]; negative is an error.
	MaxMemory int64 `yaml:"max_memory" unit:"bytes"`
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
// were confirmed do not come again. It keeps at most 16 descriptions of a teamset, those that were
// sent last, and counts 64 bytes for each beside its payload.
type MemoryDevices struct {
	config MemoryDevicesConfig

	mu    sync.Mutex
	byKey map[string]*list.Element
	used  *list.List // of *describedTeamset, the last used first
	bytes int64
}

type describedTeamset struct {
	key          string
	descriptions []DeviceDescription
}

var _ DeviceStore = (*MemoryDevices)(nil)

// NewMemoryDevices returns a store without descriptions. The error matches [ErrConfig].
func NewMemoryDevices(config MemoryDevicesConfig) (*MemoryDevices, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &MemoryDevices{config: config.WithDefaults(), byKey: map[string]*list.Element{}, used: list.New()}, nil
}

func size(d DeviceDescription) int64 { return int64(len(d.Payload)) + 64 }

// Put implements [DeviceStore]. It does not block. A description larger than MaxMemory is not
// kept.
func (m *MemoryDevices) Put(_ context.Context, key string, description DeviceDescription) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if size(description) > m.config.MaxMemory {
		return nil
	}
	element, ok := m.byKey[key]
	if !ok {
		element = m.used.PushFront(&describedTeamset{key: key})
		m.byKey[key] = element
	}
	m.used.MoveToFront(element)
	team := element.Value.(*describedTeamset)
	if slices.ContainsFunc(team.descriptions, func(d DeviceDescription) bool { return bytes.Equal(d.Payload, description.Payload) }) {
		return nil
	}
	description.Payload = bytes.Clone(description.Payload)
	team.descriptions = append(slices.Clone(team.descriptions), description)
	m.bytes += size(description)
	if len(team.descriptions) > maxDescriptions {
		slices.SortFunc(team.descriptions, func(a, b DeviceDescription) int { return a.Sent.Compare(b.Sent) })
		m.bytes -= size(team.descriptions[0])
		team.descriptions = slices.Clone(team.descriptions[1:])
	}
	for m.bytes > m.config.MaxMemory {
		m.forget(team)
	}
	return nil
}

// forget removes the teamset that was not used for the longest time, or the oldest description of
// the only one that is left. m.mu is held.
func (m *MemoryDevices) forget(last *describedTeamset) {
	oldest := m.used.Back().Value.(*describedTeamset)
	if oldest == last {
		m.bytes -= size(last.descriptions[0])
		last.descriptions = slices.Clone(last.descriptions[1:])
		return
	}
	for _, d := range oldest.descriptions {
		m.bytes -= size(d)
	}
	m.used.Remove(m.byKey[oldest.key])
	delete(m.byKey, oldest.key)
}

// Get implements [DeviceStore]. It does not block.
func (m *MemoryDevices) Get(_ context.Context, key string) ([]DeviceDescription, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	element, ok := m.byKey[key]
	if !ok {
		return nil, nil
	}
	m.used.MoveToFront(element)
	return slices.Clone(element.Value.(*describedTeamset).descriptions), nil
}
