package natstest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
)

// The folder of streams stays when the last stream is deleted, also after a restart: while the server
// removes it, no stream can be created.
func TestFolderOfStreamsStays(t *testing.T) {
	dir := t.TempDir()
	s := natstest.Start(t, func(o *server.Options) { o.StoreDir = dir })
	for range 2 {
		conn, js := natstest.Client(t, s.URL())
		// The server removes it in the background, if it is empty: a stream in a file has left a folder there
		// for a moment, those in memory leave none.
		for n := range 100 {
			storage := jetstream.MemoryStorage
			if n == 0 {
				storage = jetstream.FileStorage
			}
			_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "only", Storage: storage})
			if err == nil {
				err = js.DeleteStream(t.Context(), "only")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		testkit.Must(os.Stat(filepath.Join(dir, "jetstream", "$G", "streams")))(t)
		conn.Close()
		s.Restart()
	}
}

// A stream that is asked for when the server stops leaves nothing in the process.
func TestStopWhileAStreamIsMade(t *testing.T) {
	before := goleak.IgnoreCurrent()
	for range 20 {
		s := natstest.Start(t)
		conn, _ := natstest.Client(t, s.URL())
		testkit.NoError(t, conn.Publish("$JS.API.STREAM.CREATE.A", []byte(`{"name":"A","subjects":["a"],"storage":"file","retention":"limits","discard":"old"}`)))
		testkit.NoError(t, conn.Flush())
		conn.Close()
		s.Stop()
	}
	goleak.VerifyNone(t, before)
}
