package sinks

import "github.com/agrimill/agrimill/internal/enum"

// Ingest is how a route brings the messages of one key into a sink in their order, for sinks
// that have a choice. Messages of different keys are on their way side by side in any case.
type Ingest int

const (
	// IngestPlain: the next message of a key is published after the one before it is stored. The
	// order is strict, and a key gets on by one message in each round trip. It is the default.
	IngestPlain Ingest = iota
	// IngestPipelined: the messages of a key are on their way one behind the other, all keys together as
	// many as seven eighths of the source's window hold. The order is strict as long as nothing fails. When a
	// message fails in flight, what was sent after it may be stored before it: at most those, after
	// which the key waits until it is known what became of all of it. The message then has
	// [KeyOvertaken].
	IngestPipelined
)

var ingests = []string{"plain", "pipelined"}

// String returns plain or pipelined.
func (i Ingest) String() string { return enum.Text(i, ingests) }

// UnmarshalText reads what String returns.
func (i *Ingest) UnmarshalText(text []byte) error { return enum.Parse(i, text, ingests) }
