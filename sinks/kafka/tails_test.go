package kafka_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
)

// A broker whose files are an older copy has lost acknowledged messages: that is told, with their number and place, once it has
// others there.
func TestBrokerWentBack(t *testing.T) {
	t.Parallel()
	dir, old := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "old")
	cluster := kafkatest.Start(t, kfake.DataDir(dir))
	log := testkit.NewLog()
	var told [2]int64
	config := kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}}
	config.Lost = func(_ string, _ int32, first, last int64) { told = [...]int64{first, last} }
	sink := testkit.Must(kafka.New(config, log))(t)
	defer func() { _ = sink.Close() }()
	publish := func(n int) {
		t.Helper()
		for range n {
			testkit.Eventually(t, "it is stored", func() bool { return sink.Publish("t", newMessage("x")) == nil })
		}
	}
	publish(3)
	cluster.Stop()
	testkit.NoError(t, os.CopyFS(old, os.DirFS(dir)))
	cluster.Restart()
	publish(4)
	if lost := sink.Lost(); lost != 0 {
		t.Errorf("%d are lost before anything is", lost)
	}
	cluster.Stop()
	testkit.NoError(t, os.RemoveAll(dir))
	testkit.NoError(t, os.CopyFS(dir, os.DirFS(old)))
	cluster.Restart()
	publish(10)
	if got := sink.Lost(); got != 4 || told != [...]int64{3, 6} {
		t.Errorf("%d are lost, and %d were told", got, told)
	}
	testkit.Contains(t, log.String(), "ERROR the broker has lost acknowledged messages")
}

// A broker that has a message already does not say where: nothing is lost, and its place is unknown.
func TestHadAlready(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	sink := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}}, nil))(t)
	defer func() { _ = sink.Close() }()
	publish := func() sinks.Receipt {
		t.Helper()
		return testkit.Must(testkit.Must(sink.PublishAsync("t", newMessage("x")))(t).Wait(t.Context()))(t)
	}
	for range 3 {
		publish()
	}
	cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.DuplicateSequenceNumber, Count: 1})
	if got := publish(); got != (sinks.Receipt{}) {
		t.Errorf("got the place %+v", got)
	}
	if lost := sink.Lost(); lost != 0 {
		t.Errorf("%d are lost", lost)
	}
}
