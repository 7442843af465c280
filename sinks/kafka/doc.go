// Package kafka is the sink for Apache Kafka, on sarama and the types of
// watermill-kafka.
//
// # Guarantees
//
// Publish returns nil when every replica in sync has every message (acks=all).
// What that is worth depends on the topic; [Sink.Describe] says it, and the sink
// warns where it is less than "survives the loss of a broker":
//
//   - Replication factor 1: one broker has the message, in the memory of its
//     operating system. A crash of the broker's process loses nothing; a power
//     cut, or the loss of the disk, may.
//   - min.insync.replicas 1 (the default of Kafka): when all other replicas are
//     behind, the leader alone acknowledges. Set it to 2 with replication factor
//     3.
//   - unclean.leader.election.enable: a replica that lacks acknowledged messages
//     may become the leader. Leave it off.
//
// Delivery is at least once. The producer is idempotent: what it sends again
// after a lost acknowledgement is stored once. A call of Publish that is
// repeated by the caller is stored again: Kafka does not know [gateway.KeyDedupID],
// which readers find in the header of that name.
//
// # Order
//
// Messages with the same key (Config.PartitionKey, by default the receiving
// endpoint) go to one partition of a topic and stay in the order of the calls of
// Publish. When a call fails, a message of it may still be stored later, as
// with every time-out; the producer puts nothing of the same partition before
// it. When the topic needs another producer, because its limit has changed or a batch was
// refused, that gets nothing of the topic until the one before has the results of all it
// was given; until then calls fail with sinks.ErrUnavailable once Config.PublishTimeout is
// over. What the one before gave up without an answer, and the network holds back longer than
// all attempts, is all that may still come behind its successors.
//
// With Config.Ingest pipelined, a batch waits a millisecond for more messages, so one that comes alone
// is stored that much later.
//
// # Topics
//
// A message of topic T goes to the Kafka topic TopicPrefix.T. Topics consist of
// segments made by [TopicSegment] and dots, up to 249 bytes. A topic that does
// not exist is created when its first message comes, unless Config.Provision is
// ProvisionNone. auto.create.topics.enable is not needed and never used.
//
// Who sends messages decides which message types there are, and a topic per type
// means files on the brokers per type. Where that is a concern use fixed topics,
// or ProvisionNone.
//
// Retention is that of the topics: Kafka deletes messages after seven days unless
// told otherwise (retention.ms, e.g. by Config.TopicConfig).
//
// # Size
//
// A message above the topic's max.message.bytes, or Config.MaxMessageSize, is
// refused before it is sent. Sizes are counted before compression. To know the
// limit the client needs the permission DescribeConfigs on the topic; without
// it messages go one per request, so that the broker's refusal of one is not
// taken for a refusal of its neighbours.
//
// # Reading back
//
// [Marshaler] says how messages are written and reverses it. Give it to the
// subscriber of watermill-kafka. Other clients find the payload in the value and
// the metadata in headers of the same names.
//
// # Errors
//
// All errors of Publish and Health are [sinks.Error] or the message's context
// error. Whatever is not the message's fault is sinks.ErrUnavailable: no broker,
// no leader, too few replicas in sync, no acknowledgement in time, no topic, not
// authorised, refused by a policy. After an outage the sink recovers by itself,
// after up to ten seconds: sarama pauses that long when a partition's leader
// could not be found three times.
//
// # Why not the publisher of watermill-kafka
//
// It sends one message after the other, each when the one before it is
// acknowledged, ignores the message's context, has no bound for the time a call
// takes, and knows no sizes. The sink uses its Marshaler interface and UUID
// header, and publishes through sarama's asynchronous producer, which puts the
// messages of all callers into common batches.
package kafka
