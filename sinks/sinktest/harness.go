// Package sinktest is the conformance suite for implementations of sinks.Sink.
// A test of an implementation hands [Run] a [Suite] that starts a broker (a
// real one, or the closest thing to it), makes sinks for it, and reads what the
// broker holds by a way that does not go through the sink.
package sinktest

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/sinks"
)

// Suite connects the suite to an implementation.
type Suite struct {
	// New starts a broker that holds nothing and stops it when the test ends.
	// It is called once for all tests that leave the broker as it is, and for
	// each of the others.
	New func(t *testing.T, settings Settings) Backend

	// Features says what the implementation can do. Tests of features that it
	// lacks do not run.
	Features Features
}

// Settings are what a test of the suite asks for.
type Settings struct {
	// MaxMessageSize is the limit that broker or sink must have, headers
	// included; 0 = whatever it has.
	MaxMessageSize int64
	// Faults: the test breaks the broker, so a sink should give up after some seconds
	// without an answer. In other tests only a busy machine keeps an answer back that long.
	Faults bool
}

// Backend is one running broker. The suite calls its methods from the goroutine
// of the test, except where it says otherwise.
type Backend interface {
	// NewSink returns a new sink on the broker. The suite closes it; the backend
	// has to close it again when the test ends.
	NewSink(t *testing.T) sinks.Sink

	// Read returns everything that the broker holds in the topic, in the order
	// it was stored. A topic that nothing was stored in is empty. It does not
	// use the sink.
	Read(t *testing.T, topic string) []*message.Message

	// Break makes the broker unreachable: connections are refused or cut. It
	// keeps what it holds. Only called with Features.Outage.
	Break(t *testing.T)
	// Repair ends Break.
	Repair(t *testing.T)

	// Hang makes the broker accept connections and data, but not answer. Only
	// called with Features.Hang.
	Hang(t *testing.T)
	// Resume ends Hang. Data that was held back may or may not arrive.
	Resume(t *testing.T)
}

// Features says what an implementation can do.
type Features struct {
	// UUID: messages come back with the UUID they were published with.
	UUID bool
	// Metadata: metadata comes back as it was published.
	Metadata bool
	// ReservedNames are metadata names that mean something to the broker; they
	// have to come back like all others and to mean nothing. Only with Metadata.
	ReservedNames []string
	// Dedup: the broker recognizes copies by gateway.KeyDedupID.
	Dedup bool
	// AtReceipt returns the message that the broker holds in a topic of the sink at the
	// place of a receipt, nil when there is none. It does not use the sink. nil = the
	// sink gives no receipts.
	AtReceipt func(t *testing.T, b Backend, topic string, receipt sinks.Receipt) *message.Message
	// MaxMessageSize: Settings.MaxMessageSize is heeded.
	MaxMessageSize bool
	// Outage: the backend can Break and Repair.
	Outage bool
	// Hang: the backend can Hang and Resume.
	Hang bool
	// RejectedTopics are topics that the sink has to refuse with
	// sinks.ErrRejected, beside those of the suite that its CheckTopic refuses.
	RejectedTopics []string
	// UnescapeTopicSegment reverses TopicSegment; nil = the sink has no such
	// function.
	UnescapeTopicSegment func(string) (string, error)
	// TopicIsValue: the topic is no name in the broker but a value that receivers
	// read, such as a message type. TopicSegment returns every string as it is then,
	// and Publish refuses with sinks.ErrRejected what is not legal.
	TopicIsValue bool
	// LegalSegment says whether the broker takes a string as one segment of a
	// topic.
	LegalSegment func(string) bool
}

// NoFaults can be embedded by backends without Features.Outage and
// Features.Hang.
type NoFaults struct{}

// Break does nothing.
func (NoFaults) Break(*testing.T) {}

// Repair does nothing.
func (NoFaults) Repair(*testing.T) {}

// Hang does nothing.
func (NoFaults) Hang(*testing.T) {}

// Resume does nothing.
func (NoFaults) Resume(*testing.T) {}
