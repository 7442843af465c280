package natstest

import (
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/internal/testkit"
)

// Put writes an entry of a bucket, as somebody else would.
func Put(tb testing.TB, s *Server, bucket, key, value string) {
	tb.Helper()
	conn := testkit.Must(Connect("", natsgo.InProcessServer(s)))(tb)
	defer conn.Close()
	js := testkit.Must(JetStream(conn))(tb)
	kv, err := js.KeyValue(tb.Context(), bucket)
	if err == nil {
		_, err = kv.PutString(tb.Context(), key, value)
	}
	if err != nil {
		tb.Fatal(err)
	}
}
