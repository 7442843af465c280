package devicestore_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/stores/kafka/devicestore"
)

// What of a record cannot be read costs itself and is named; the record beside it is known in any case.
func TestUnreadableRecords(t *testing.T) {
	sum := sha256.Sum256([]byte("devices"))
	digest := hex.EncodeToString(sum[:])
	stored := time.Unix(5000, 0).UTC()
	sent := func(values ...string) (headers []kgo.RecordHeader) {
		for _, value := range values {
			headers = append(headers, kgo.RecordHeader{Key: "x-router-sent-timestamp", Value: []byte(value)})
		}
		return headers
	}
	for name, test := range map[string]struct {
		key, value string
		headers    []kgo.RecordHeader
		times      []int64 // when it was sent; nil: it is not known
		says       string
	}{
		"sound":             {"team/" + digest, "devices", sent("1970-01-01T00:00:02Z"), []int64{2}, ""},
		"without seconds":   {"team/" + digest, "devices", sent("1970-01-01T00:01Z"), []int64{60}, ""},
		"one bad time":      {"team/" + digest, "devices", sent("1970-01-01T00:00:02Z", "then"), []int64{2}, "a time it was sent"},
		"only a bad time":   {"team/" + digest, "devices", sent("then"), []int64{5000}, "a time it was sent"},
		"an empty time":     {"team/" + digest, "devices", sent(""), []int64{5000}, "a time it was sent"},
		"no time":           {"team/" + digest, "devices", nil, []int64{5000}, ""},
		"an unknown header": {"team/" + digest, "devices", append(sent("1970-01-01T00:00:02Z"), kgo.RecordHeader{Key: "new", Value: []byte{0xff}}), []int64{2}, ""},
		"another digest":    {"team/" + digest, "other", sent("1970-01-01T00:00:02Z"), nil, "another digest"},
		"no digest":         {"team/", "devices", sent("1970-01-01T00:00:02Z"), nil, "another digest"},
		"no teamset":        {"team", "devices", sent("1970-01-01T00:00:02Z"), nil, "the key has no teamset"},
		"no key":            {"", "devices", sent("1970-01-01T00:00:02Z"), nil, "the key has no teamset"},
		"deleted":           {"team/" + digest, "", nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := kafkatest.Start(t, kfake.SeedTopics(1, devicestore.DefaultTopic))
			log := testkit.NewLog()
			sound := sha256.Sum256([]byte("sound"))
			write(t, cluster.Addr(),
				&kgo.Record{Topic: devicestore.DefaultTopic, Key: []byte(test.key), Value: []byte(test.value), Headers: test.headers, Timestamp: stored},
				&kgo.Record{Topic: devicestore.DefaultTopic, Key: []byte("other/one/" + hex.EncodeToString(sound[:])), Value: []byte("sound"), Headers: sent("1970-01-01T00:00:09Z")},
			)
			store := testkit.Must(devicestore.New(t.Context(), devicestore.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Logger: log, ReadOnly: true}))(t)
			defer func() { _ = store.Close() }()
			known := testkit.Must(store.Get(t.Context(), "team"))(t)
			var times []int64
			for _, d := range known {
				times = append(times, d.Sent.Unix())
			}
			testkit.Equal(t, times, test.times)
			var said []string
			for _, line := range log.Lines() {
				said = append(said, fmt.Sprintf("%v %v %v", line.Fields["reason"], line.Fields["offset"], line.Fields["key"]))
			}
			var want []string
			if test.says != "" {
				want = []string{fmt.Sprintf("%s 0 %s", test.says, test.key)}
			}
			testkit.Equal(t, said, want)
			if other, err := store.Get(t.Context(), "other/one"); err != nil || len(other) != 1 {
				t.Errorf("beside it: %d descriptions, %v, want 1", len(other), err)
			}
		})
	}
}

// However many records cannot be read, the log names a few of them, and nobody needs to want a log.
func TestManyUnreadableRecords(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t, kfake.SeedTopics(1, devicestore.DefaultTopic))
	bad := make([]*kgo.Record, 100)
	for i := range bad {
		bad[i] = &kgo.Record{Topic: devicestore.DefaultTopic, Key: []byte("team"), Value: []byte("devices")}
	}
	write(t, cluster.Addr(), bad...)
	log := testkit.NewLog()
	for _, config := range []devicestore.Config{{}, {Logger: log}} {
		config.Brokers, config.ReadOnly = []string{cluster.Addr()}, true
		store := testkit.Must(devicestore.New(t.Context(), config))(t)
		testkit.NoError(t, store.Close())
	}
	if n := len(log.Lines()); n != 20 {
		t.Errorf("%d lines, want 20", n)
	}
}
