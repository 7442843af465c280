// Package kafkatest contains what tests against Kafka need: an in-process cluster, a proxy that injects faults, and a reader
// that shares nothing with the code under test. A real broker is in package kafkatest/broker.
package kafkatest
