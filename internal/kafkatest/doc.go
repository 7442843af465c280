// Package kafkatest has what tests against Kafka need: a cluster in the process
// that speaks Kafka's protocol, a proxy for faults on the way, and a reader that
// has nothing in common with the code under test. A real broker is in package
// kafkatest/broker.
package kafkatest
