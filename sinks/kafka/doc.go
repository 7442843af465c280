// Package kafka is the sink for Apache Kafka.
//
//	sink, err := kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{"localhost:9092"}}}, nil)
//
// A message of topic T goes to the Kafka topic TopicPrefix.T ([TopicName]), which is created when its first message comes
// unless Config.Provision is ProvisionNone. Whoever sends decides which message types there are, and each topic means files on
// the brokers: use fixed topics where that is a concern. Kafka deletes messages after seven days unless told otherwise
// (retention.ms, e.g. by Config.TopicConfig). To read back, subscribe to T with package sources/kafka, or to its TopicName with
// [Marshaler] and the subscriber of watermill-kafka; other clients find the metadata in headers of the same names.
//
// # Guarantees
//
// Publish returns nil when every replica in sync has every message (acks=all).
// [Sink.Describe] says what that is worth, and the sink warns where it is less than "survives the loss of a broker": use
// replication factor 3 with min.insync.replicas 2, which is 1 by default, and leave unclean.leader.election.enable off.
//
// Delivery is at least once. What the producer sends again is stored once; what the caller
// publishes again is stored again, with the same gateway.KeyDedupID in its header.
//
// # Order
//
// Messages with the same key (Config.PartitionKey, by default the receiving endpoint) go to one partition and stay in the order
// of the calls of Publish. A message of a failed call may still be stored later, but nothing of its partition is put before it.
// When a topic needs another producer, because its limit has changed or a batch was refused, that one waits until the one
// before has all results; until then calls fail with sinks.ErrUnavailable after Config.PublishTimeout. With Config.Ingest
// pipelined, a batch waits a millisecond for more.
//
// # Size
//
// A message above the topic's max.message.bytes, or Config.MaxMessageSize, is refused before it is sent. Sizes are counted
// before compression. Without the permission DescribeConfigs the limit is unknown, and messages go one per request.
//
// # Errors
//
// Errors of Publish and Health are [sinks.Error] or the message's context error. Whatever is
// not the message's fault is sinks.ErrUnavailable, also what is not authorized or refused by a
// policy. After an outage the sink recovers by itself within ten seconds.
package kafka
