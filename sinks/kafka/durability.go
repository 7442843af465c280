package kafka

import (
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
)

// assess warns where a topic promises less than "nothing is lost" needs, and
// lowers what Describe says if need be.
func (s *Sink) assess(t *topic) {
	have := t.settings
	level, note := durability(&have, "topic "+t.name)
	s.lower(level, note)
	fields := watermill.LogFields{"kafka_topic": t.name}
	if !have.known {
		s.warn("not allowed to read the settings of topics, so messages go one per request, and their limit is not known; grant DescribeConfigs", fields)
		return
	}
	s.warnSettings(&have, fields)
}

// warnSettings warns about settings of a topic, or of topics yet to be created.
func (s *Sink) warnSettings(have *settings, fields watermill.LogFields) {
	switch {
	case have.replicationFactor == 1:
		s.warn("replication factor 1: the loss of one broker's disk loses acknowledged messages; use 3", fields)
	case have.minInSync < 2 && have.replicationFactor > 1:
		s.warn("min.insync.replicas 1: the leader alone may acknowledge, and its loss then loses messages; use 2 with replication factor 3", fields)
	}
	if have.uncleanElection {
		s.warn("unclean.leader.election.enable: a replica that lacks acknowledged messages may become the leader; set it to false", fields)
	}
	if have.compacted {
		s.warn("cleanup.policy compact: only the last message of each key is kept; use delete", fields)
	}
}

// warn logs a warning once, not for every topic.
func (s *Sink) warn(text string, fields watermill.LogFields) {
	if _, before := s.warned.LoadOrStore(text, true); before {
		s.logger.Debug("warning, as before: "+text, fields)
		return
	}
	warnlog.Warn(s.logger, text, fields)
}

// synced returns when what is acknowledged survives a power cut, if the topics are what somebody has said it of.
func synced(level sinks.Durability, said sinks.Synced) sinks.Synced {
	if level < sinks.DurabilityDisk || said == sinks.SyncedReplicas && level != sinks.DurabilityReplicated {
		return sinks.SyncedUnknown
	}
	return said
}

// durability returns what the settings of a topic promise.
func durability(have *settings, what string) (sinks.Durability, string) {
	switch {
	case !have.known:
		return sinks.DurabilityUnknown, "the settings cannot be read; grant DescribeConfigs"
	case have.compacted:
		return sinks.DurabilityNone, what + " has cleanup.policy compact: only the last message of each key is kept; use delete"
	case have.replicationFactor > 1 && have.minInSync > 1 && !have.uncleanElection:
		return sinks.DurabilityReplicated, fmt.Sprintf("acknowledged by at least %d of %d replicas (acks=all)", have.minInSync, have.replicationFactor)
	case have.flushEveryMessage:
		return sinks.DurabilitySynced, what + " syncs every message before the acknowledgment (flush.messages 1), on one broker at least"
	case have.replicationFactor > 1:
		return sinks.DurabilityDisk, fmt.Sprintf("%s has %d replicas, but one alone may acknowledge, before it synced: use min.insync.replicas 2 with replication factor 3, without unclean leader election", what, have.replicationFactor)
	default:
		return sinks.DurabilityDisk, what + " has one copy, not synced before the acknowledgment: a power cut may lose acknowledged messages; use replication factor 3 with min.insync.replicas 2"
	}
}

// promises is what the sink has said of the topics so far.
type promises struct {
	durabilityMu sync.Mutex
	weakest      *sinks.Description // durability of the weakest topic so far
	warned       sync.Map           // texts of warnings
}

// lower takes in the durability of a topic.
func (p *promises) lower(level sinks.Durability, note string) {
	p.durabilityMu.Lock()
	defer p.durabilityMu.Unlock()
	if p.weakest == nil || level < p.weakest.Durability {
		p.weakest = &sinks.Description{Durability: level, DurabilityNote: note}
	}
}

func (p *promises) weakestTopic() *sinks.Description {
	p.durabilityMu.Lock()
	defer p.durabilityMu.Unlock()
	return p.weakest
}
