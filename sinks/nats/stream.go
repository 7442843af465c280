package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/natssubject"
	"github.com/agrimill/agrimill/internal/streamrule"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
)

// ErrStream is wrapped by New's error when a stream exists that the sink cannot
// use: its subjects do not cover the sink's, it does not acknowledge, does not have what it acknowledged, or takes no messages.
var ErrStream = errors.New("sinks/nats: unusable stream")

// streamConfig returns what the Config asks for, as the server reports it back.
func (c Config) streamConfig() jetstream.StreamConfig {
	unlimited := func(n int64) int64 {
		if n == 0 {
			return -1
		}
		return n
	}
	discard := jetstream.DiscardNew
	if c.DiscardOld {
		discard = jetstream.DiscardOld
	}
	return jetstream.StreamConfig{
		Name:       c.Stream,
		Subjects:   []string{c.SubjectPrefix + ".>"},
		Retention:  c.Retention,
		Discard:    discard,
		Storage:    c.Storage,
		Replicas:   c.Replicas,
		MaxAge:     c.MaxAge,
		MaxBytes:   unlimited(c.MaxBytes),
		MaxMsgs:    unlimited(c.MaxMessages),
		MaxMsgSize: int32(unlimited(int64(c.MaxMessageSize))),
		Duplicates: c.DedupWindow,
	}
}

// updated returns what ProvisionUpdate makes of a stream.
func (c Config) updated(have jetstream.StreamConfig) jetstream.StreamConfig {
	want := c.streamConfig()
	if !coversAny(have.Subjects, c.SubjectPrefix) {
		narrower := func(subject string) bool { return strings.HasPrefix(subject, c.SubjectPrefix+".") }
		have.Subjects = append(slices.DeleteFunc(slices.Clone(have.Subjects), narrower), want.Subjects...)
	}
	have.Retention, have.Discard, have.Storage = want.Retention, want.Discard, want.Storage
	have.Replicas, have.MaxAge, have.MaxBytes = want.Replicas, want.MaxAge, want.MaxBytes
	have.MaxMsgs, have.MaxMsgSize, have.Duplicates = want.MaxMsgs, want.MaxMsgSize, want.Duplicates
	return have
}

// provisionStream does what Config.Provision says and returns the stream's
// settings, as they are on the server, and how they differ from the Config's. It calls
// created if the stream was missing.
func provisionStream(
	ctx context.Context, js jetstream.JetStream, cfg Config, created func(),
) (jetstream.StreamConfig, []string, error) {
	want := cfg.streamConfig()
	stream, err := js.Stream(ctx, cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) && cfg.Provision != ProvisionNone {
		if err := checkSubjectIsFree(ctx, js, cfg.Stream, want.Subjects[0]); err != nil {
			return jetstream.StreamConfig{}, nil, err
		}
		if !cfg.ReadOnly {
			if stream, err = js.CreateStream(ctx, want); err == nil {
				created()
			} else if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
				stream, err = js.Stream(ctx, cfg.Stream) // another sink was faster
			}
		}
	}
	if err != nil {
		return jetstream.StreamConfig{}, nil, fmt.Errorf("stream %s: %w", cfg.Stream, err)
	}
	have := stream.CachedInfo().Config
	differences := diffStream(have, want)

	if cfg.Provision == ProvisionUpdate && have.Mirror == nil && (len(differences) > 0 || !coversAny(have.Subjects, cfg.SubjectPrefix)) {
		if !coversAny(have.Subjects, cfg.SubjectPrefix) {
			if err := checkSubjectIsFree(ctx, js, cfg.Stream, want.Subjects[0]); err != nil {
				return jetstream.StreamConfig{}, nil, err
			}
		}
		if have = cfg.updated(have); !cfg.ReadOnly {
			stream, err = js.UpdateStream(ctx, have)
			if err != nil {
				return jetstream.StreamConfig{}, nil, fmt.Errorf("update stream %s: %w", cfg.Stream, err)
			}
			have = stream.CachedInfo().Config
		}
		differences = diffStream(have, want)
	}

	loses := streamrule.Loses(have, want.Subjects[0])
	switch {
	case have.Mirror != nil:
		return have, nil, fmt.Errorf("%w: %s mirrors the stream %s and takes nothing else", ErrStream, cfg.Stream, have.Mirror.Name)
	case !coversAny(have.Subjects, cfg.SubjectPrefix):
		return have, nil, fmt.Errorf("%w: %s has the subjects %s, which do not cover %s",
			ErrStream, cfg.Stream, strings.Join(have.Subjects, " "), want.Subjects[0])
	case have.NoAck:
		return have, nil, fmt.Errorf("%w: %s does not acknowledge (no_ack)", ErrStream, cfg.Stream)
	case loses != "":
		return have, nil, fmt.Errorf("%w: %s %s", ErrStream, cfg.Stream, loses)
	case have.AllowMsgCounter:
		return have, nil, fmt.Errorf("%w: %s takes counts, and no messages (allow_msg_counter)", ErrStream, cfg.Stream)
	case have.Sealed:
		return have, nil, fmt.Errorf("%w: %s is sealed", ErrStream, cfg.Stream)
	}
	return have, differences, nil
}

// checkSubjectIsFree reports whether a stream other than the named one has the subject, or a part of it, and
// would get the messages instead. Where the account may not ask, the server's answer to the change tells.
func checkSubjectIsFree(ctx context.Context, js jetstream.JetStream, stream, subject string) error {
	for other := range js.StreamNames(ctx, jetstream.WithStreamListSubject(subject)).Name() {
		if other != stream {
			return fmt.Errorf("%w: %s does not have the subject %s and cannot get it: stream %s has it, or a part of it",
				ErrStream, stream, subject, other)
		}
	}
	return nil
}

// coversAny reports whether one of the patterns matches every subject with the prefix.
func coversAny(patterns []string, prefix string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return natssubject.Covers(p, prefix+".>") })
}

// diffStream lists the settings of Config that differ, as "name have (want)".
func diffStream(have, want jetstream.StreamConfig) []string {
	var differences []string
	diff := func(name string, have, want any) {
		if have != want {
			differences = append(differences, fmt.Sprintf("%s %v (configured: %v)", name, have, want))
		}
	}
	diff("retention", have.Retention, want.Retention)
	diff("discard", have.Discard, want.Discard)
	diff("storage", have.Storage, want.Storage)
	diff("replicas", have.Replicas, want.Replicas)
	diff("max age", have.MaxAge, want.MaxAge)
	diff("max bytes", have.MaxBytes, want.MaxBytes)
	diff("max messages", have.MaxMsgs, want.MaxMsgs)
	diff("max message size", have.MaxMsgSize, want.MaxMsgSize)
	diff("dedup window", have.Duplicates, want.Duplicates)
	return differences
}

// shortMaxAge is the age below which messages count as not kept: a consumer that
// is away for that long is nothing unusual.
const shortMaxAge = time.Hour

// deletes tells how the stream deletes messages that it has acknowledged and that
// nobody may have read yet, or that they are where nobody reads them; empty when it does not.
func deletes(have jetstream.StreamConfig, cfg Config) string {
	loses := streamrule.Loses(have, cfg.SubjectPrefix+".>")
	switch {
	case loses != "": // changed since the start, which refuses it
		return "the stream " + loses
	case have.MaxMsgsPerSubject > 0 && !have.DiscardNewPerSubject:
		messages := fmt.Sprintf("%d messages", have.MaxMsgsPerSubject)
		if have.MaxMsgsPerSubject == 1 {
			messages = "message"
		}
		return fmt.Sprintf("only the last %s of each subject stay, older ones are deleted (max_msgs_per_subject): remove that limit, or set discard_new_per_subject to hold the intake instead", messages)
	case have.Discard == jetstream.DiscardOld && (have.MaxBytes > 0 || have.MaxMsgs > 0):
		return "a full stream deletes its oldest messages (discard old): use discard new to hold the intake instead"
	case have.MaxAge > 0 && have.MaxAge < shortMaxAge:
		return fmt.Sprintf("messages are deleted after %v (max age): a consumer that is away for longer misses them", have.MaxAge)
	}
	return ""
}

// durability returns what the stream's settings promise.
func durability(have jetstream.StreamConfig, cfg Config) (sinks.Durability, string) {
	if how := deletes(have, cfg); how != "" {
		return sinks.DurabilityNone, how
	}
	level, note := storage(have, cfg.Synced == sinks.SyncedAlways)
	if have.MaxAge > 0 {
		note += fmt.Sprintf("; deleted after %v (max age)", have.MaxAge)
	}
	return level, note
}

// synced returns when what the stream acknowledges survives a power cut, if it is what the Config is about.
func synced(have jetstream.StreamConfig, cfg Config) sinks.Synced {
	level, _ := durability(have, cfg)
	if level < sinks.DurabilityDisk || cfg.Synced == sinks.SyncedReplicas && level != sinks.DurabilityReplicated {
		return sinks.SyncedUnknown
	}
	return cfg.Synced
}

// storage returns what messages survive as long as they are not deleted.
func storage(have jetstream.StreamConfig, syncAlways bool) (sinks.Durability, string) {
	switch {
	case have.Storage == jetstream.MemoryStorage && have.Replicas < 3:
		return sinks.DurabilityMemory, "memory storage: acknowledged messages are lost when the server ends; use file storage"
	case have.PersistMode == jetstream.AsyncPersistMode:
		return sinks.DurabilityMemory, "the stream acknowledges before it writes (persist_mode async): acknowledged messages are lost when the server crashes; use the default persist mode"
	case have.Storage == jetstream.MemoryStorage:
		return sinks.DurabilityMemory, fmt.Sprintf("memory storage on %d replicas: acknowledged messages are lost when a majority of the servers ends; use file storage", have.Replicas)
	case have.Replicas >= 3:
		return sinks.DurabilityReplicated, fmt.Sprintf("file storage, acknowledged by a majority of %d replicas", have.Replicas)
	case syncAlways:
		return sinks.DurabilitySynced, "file storage, one copy, synced before the acknowledgment (sync_interval always)"
	default:
		return sinks.DurabilityDisk, "file storage, one copy, synced every two minutes by default: a power cut may lose acknowledged messages; set `sync_interval: always` in the server's jetstream block and say so with synced, or use three replicas"
	}
}

// warn tells the logger what differs from the Config.
func warn(logger watermill.LoggerAdapter, have jetstream.StreamConfig, differences []string) {
	fields := watermill.LogFields{"stream": have.Name}
	warning := func(text string) { warnlog.Warn(logger, text, fields) }
	if have.Duplicates < shortDedupWindow {
		warning(fmt.Sprintf("the dedup window of %v is short: a copy that comes later, after a reconnect for instance, is stored again; set a dedup window of %v or more", have.Duplicates, shortDedupWindow))
	}
	if len(differences) > 0 {
		warning("the stream exists with other settings, which stay: " + strings.Join(differences, ", ") + "; set provision to update to change them")
	}
}

// provision is run again when the server answers that there is no stream: it
// may have been deleted, or lived in the memory of a server that restarted.
func (s *Sink) provision(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	have, differences, err := provisionStream(ctx, s.js, s.config, func() {
		if s.stream.Load() != nil {
			warnlog.Warn(s.logger, "the NATS stream was gone and was created again; what it held is lost unless it was read",
				watermill.LogFields{"stream": s.config.Stream})
		}
	})
	if err != nil {
		return Explain(s.conn, s.config.Domain, err)
	}
	warn(s.logger, have, differences)
	return nil
}
