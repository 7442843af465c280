package kafka

import (
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
)

// warn logs warnings, each once, not for every topic.
func (s *Sink) warn(fields watermill.LogFields, texts ...string) {
	for _, text := range texts {
		if _, before := s.warned.LoadOrStore(text, true); before {
			s.logger.Debug("warning, as before: "+text, fields)
		} else {
			warnlog.Warn(s.logger, text, fields)
		}
	}
}

// weaknesses are what settings of a topic, or of topics yet to be created, promise less than "nothing is lost" needs.
func (s *settings) weaknesses() (list []string) {
	switch {
	case !s.known:
		return []string{"not allowed to read the settings of topics, so messages go one per request, and their limit is not known; grant DescribeConfigs"}
	case s.replicationFactor < 2:
		list = append(list, "replication factor 1: a power cut, or the loss of one broker's disk, loses acknowledged messages; use 3")
	case s.minInSync < 2:
		list = append(list, "min.insync.replicas 1: the leader alone may acknowledge, before it synced, and its loss then loses messages; use 2 with replication factor 3")
	}
	if s.uncleanElection {
		list = append(list, "unclean.leader.election.enable: a replica that lacks acknowledged messages may become the leader; set it to false")
	}
	if s.compacted {
		list = append(list, "cleanup.policy compact: only the last message of each key is kept; use delete")
	}
	return list
}

// synced returns when what is acknowledged survives a power cut, if the topics are what somebody has said it of.
func synced(level sinks.Durability, said sinks.Synced) sinks.Synced {
	if level < sinks.DurabilityDisk || said == sinks.SyncedReplicas && level != sinks.DurabilityReplicated {
		return sinks.SyncedUnknown
	}
	return said
}

// durability returns what the settings of a topic promise.
func (s *settings) durability(what string) (level sinks.Durability, note string) {
	level = sinks.DurabilityDisk
	switch {
	case !s.known:
		return sinks.DurabilityUnknown, "the settings cannot be read; grant DescribeConfigs"
	case s.compacted:
		level = sinks.DurabilityNone
	case s.replicationFactor > 1 && s.minInSync > 1 && !s.uncleanElection:
		return sinks.DurabilityReplicated, fmt.Sprintf("acknowledged by at least %d of %d replicas (acks=all)", s.minInSync, s.replicationFactor)
	case s.flushEveryMessage:
		return sinks.DurabilitySynced, what + " syncs every message before the acknowledgment (flush.messages 1), on one broker at least"
	}
	return level, what + " has " + strings.Join(s.weaknesses(), "; ")
}

// lower takes in the durability of a topic. It is called with topicsMu.
func (s *Sink) lower(t *topic) {
	level, note := t.settings.durability("topic " + t.name)
	if weakest := s.weakest.Load(); weakest == nil || level < weakest.Durability {
		s.weakest.Store(&sinks.Description{Durability: level, DurabilityNote: note})
	}
}
