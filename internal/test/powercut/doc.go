// Package powercut cuts the power of a real nats-server and of a real Kafka broker: it is killed, and its files are made what had been
// synced. The nats-server is built with a layer in package os of Go that follows every Sync and Rename; see layer.go.txt. Kafka has the
// same between it and the C library; see layer.c.txt. It has tests only, with the build tag powercut. Agrimill runs in a process of its
// own, which is killed in the same moment at times.
package powercut
