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
// [gateway.KeyDedupID] and the copy comes within the stream's dedup window
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
