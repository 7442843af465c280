package natstest

import (
	"testing"

	natsgo "github.com/nats-io/nats.go"
)

// Put writes an entry of a bucket, as somebody else would.
func Put(tb testing.TB, s *Server, bucket, key, value string) {
	tb.Helper()
	_, js := Client(tb, "", natsgo.InProcessServer(s))
	kv, err := js.KeyValue(tb.Context(), bucket)
	if err == nil {
		_, err = kv.PutString(tb.Context(), key, value)
	}
	if err != nil {
		tb.Fatal(err)
	}
}
