// Package faulttest proves what docs/guarantees.md promises: the whole pipeline,
// from a gateway over HTTP through subscriber and router into JetStream or
// Kafka, under faults, and one oracle that judges what came of it. It has tests
// only. They take minutes, so they are behind the build tag faults:
//
//	make torture PART=faults                    each row of matrix.md once
//	make torture PART=chaos SEEDS=20 N=20000    random faults, several at a time
//	make torture PART=chaos SEED=7 N=20000      the same faults once more
//	make torture PART=soak T=30m                memory, goroutines and throughput over time
//
// The oracle (see judge) compares the ledger of the gateway with what a reader
// finds that shares neither connection nor code with the sinks:
//
//   - Nothing is lost: everything is stored, with the SHA-256 it was sent with.
//   - Nothing is confirmed early: at every single confirmation, the reader looks
//     whether the message is stored, before the gateway answers. What the sink had
//     not acknowledged when the confirmation was sent is found too.
//   - Nothing is there twice after deduplication. Raw duplicates are counted.
//   - It resumes: after the last fault everything is confirmed, by itself.
//   - No goroutine is left, and memory stays within a bound.
//   - No secret is logged.
package faulttest
