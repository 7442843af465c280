// Package nats is the sink for NATS JetStream.
//
//	sink, err := nats.New(nats.Config{Connection: nats.Connection{URL: "nats://localhost:4222"}}, nil)
//
// A message of topic T goes to the subject SubjectPrefix.T ([Subject]), and one stream with the
// subject SubjectPrefix.> holds all of them; New makes it unless Config.Provision says otherwise.
// To read back, subscribe to T with package sources/nats, or with [Marshaler], [SubjectCalculator]
// and the subscriber of watermill-nats.
//
// # Guarantees
//
// Publish returns nil when the stream has acknowledged every message. [Sink.Describe] says
// what that is worth, and New warns when it is less than "survives a power cut": use file storage
// with three replicas, or a server with sync_interval: always. Otherwise a power cut may take the
// last two minutes, and with memory storage nothing survives the server.
//
// Delivery is at least once. A copy with the same gateway.KeyDedupID and topic is stored once
// within Config.DedupWindow; without that ID it is stored again. A full stream refuses new
// messages unless Config.DiscardOld says otherwise.
//
// # Errors
//
// Errors of Publish and Health are [sinks.Error] or the message's context error. Whatever is
// not the message's fault is sinks.ErrUnavailable, also a stream that is full and what is not
// authorized. The sink recovers by itself, and makes a missing stream again unless
// Config.Provision is ProvisionNone.
package nats
