// Package powercut cuts the power of a real nats-server: it is killed, and its files are made what had been synced. The server is
// built with a layer in package os of Go that follows every Sync and Rename; see layer.go.txt. It has tests only, with the build tag
// powercut. Agrimill runs in a process of its own, which is killed in the same moment at times.
package powercut
