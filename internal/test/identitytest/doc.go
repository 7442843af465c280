// Package identitytest checks the rules of docs/identity.md with random programs: sends, records of a
// broker, repetitions, chunks, redeliveries, lost acknowledgments, kills, other filters, transforms and topics,
// poisonings, drops and replays. An oracle, which shares no code with the router and the subscriber, knows from the
// ledger alone what has to be stored, how often, and what may be. The mutants break one rule each and
// have to be found.
//
// The same programs run in two worlds: in memory, where stand-ins give and take each message, with time
// to spare for very many of them, and where the sink may be the gateway, by way of the publisher; and with
// the gateway's emulator, the subscriber, and JetStream or Kafka, where a program is cut off from
// everything at some step, and started again.
//
// Programs of their own are about subscriptions that end and begin again beside others, and what
// is confirmed meanwhile; and about what is left in a bucket by attempts with other bytes, kills and power cuts; and
// about a Kafka sink that changes the producer of a topic while requests are in flight.
package identitytest
