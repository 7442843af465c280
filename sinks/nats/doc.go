// Package nats is the sink for NATS JetStream, on the types of watermill-nats.
//
// # Guarantees
//
// Publish returns nil when the stream has acknowledged every message. What an
// acknowledgement is worth depends on the stream; [Sink.Describe] says it, and
// New warns when it is less than "survives a power cut":
//
//   - Memory storage: nothing survives the server.
//   - File storage with one replica: the server acknowledges when the message
//     is written to a file, and syncs files every two minutes by default. A
//     crash of the server loses nothing, a power cut may. `sync_interval: always`
//     in the server's jetstream block closes the gap, at the price of speed.
//   - File storage with three replicas: a majority has the message.
//
// Delivery is at least once. A publish that is repeated because its
// acknowledgement was lost is stored once when the message carries
// [sinks.KeyDedupID] and the copy comes within the stream's dedup window
// (Config.DedupWindow). The ID counts per topic. Without an ID the copy is
// stored again; in particular the message's UUID is not taken for an ID, since
// nobody promises that two copies share it or that two messages do not.
//
// A full stream refuses new messages instead of deleting old ones unless
// Config.DiscardOld says otherwise.
//
// # Subjects and streams
//
// A message of topic T goes to the subject SubjectPrefix.T. One stream with the
// subject SubjectPrefix.> holds all of them. Topics consist of segments made by
// [TopicSegment] and dots. Subjects are at most 2048 bytes long.
//
// # Reading back
//
// [Marshaler] says how messages are written and reverses it. [Subscriber] reads
// any stream through a durable consumer, survives outages and closes during one.
// For the subscriber of watermill-nats give it Marshaler and [SubjectCalculator].
//
// # Batched ingest
//
// With [sinks.IngestBatched], messages of PublishAsync go into the stream in batches ("fast ingest", nats-server
// 2.14): many of a key are on their way, and the server stores nothing behind one that it refused
// or that was lost. The stream has to allow it (allow_batched); one that New creates does, and New
// refuses another one with [ErrStream] unless ProvisionUpdate may change it. Publish sends plainly, also then.
//
// The protocol has two traps, which the sink keeps away from, whatever it costs:
//
//   - A message that a server with replicas has, and can still lose, is acknowledged when it is sent
//     again in another batch, as a copy of one that is stored. A plain publish of it is refused
//     until that is certain. So everything that may have been sent before is published plainly, and
//     the next message of its key waits until it is stored: what was in a batch that was broken by
//     an error, a refusal, a lost connection or silence (Config.PublishTimeout without
//     progress); and everything in the first minute after New, and after a route's subscription
//     or its term of a lease began, because another process may have sent it. For that time the sink is as
//     fast as in [sinks.IngestPlain], and for a second after each break. Two processes that publish
//     the same messages at the same time need a lease, or another Ingest.
//   - A message in a batch that expects a certain one before it (Nats-Expected-Last-Msg-Id) is
//     acknowledged when that is not so, and not stored. The sink never sends that header; one of a
//     marshaler of yours makes a message go plainly.
//
// An acknowledgement of a batch covers all up to a message, and tells neither sequences nor
// duplicates: the receipt has stream and subject only. When a batch ends, because nothing came for a
// second, whoever subscribes to the subjects without JetStream gets one message without payload more,
// which is not stored.
//
// # Errors
//
// All errors of Publish and Health are [sinks.Error] or the message's context
// error. Whatever is not the message's fault is sinks.ErrUnavailable: no
// connection, no acknowledgement in time, no stream, stream full, not
// authorised. After an outage the sink recovers by itself; when the stream is
// gone it is made again, unless Config.Provision is ProvisionNone.
//
// # Why not the publisher of watermill-nats
//
// It is as fast for concurrent callers (BenchmarkWatermillPublisher). But it
// ignores the message's context, also while a server hangs, sends the messages
// of one call one by one, each after the other's acknowledgement, has no bound
// for the time an acknowledgement takes, and knows no sizes. The sink uses its
// Marshaler interfaces, and publishes by itself over a connection of nats.go: its
// asynchronous publisher makes a timer, a future and a decoded answer for each message.
package nats
