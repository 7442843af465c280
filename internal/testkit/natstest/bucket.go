package natstest

import (
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
)

// CreateLossyBucket creates a key-value bucket that acknowledges keys and deletes them at once.
func CreateLossyBucket(tb testing.TB, conn *natsgo.Conn, bucket string) {
	tb.Helper()
	js, err := JetStream(conn)
	if err == nil {
		_, err = js.CreateStream(tb.Context(), jetstream.StreamConfig{
			Name: "KV_" + bucket, Subjects: []string{"$KV." + bucket + ".>"}, Retention: jetstream.InterestPolicy,
			MaxMsgsPerSubject: 1, AllowRollup: true, AllowDirect: true,
		})
	}
	if err != nil {
		tb.Fatal(err)
	}
}

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
