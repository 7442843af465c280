package devicestore_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/stores/nats/devicestore"
)

// What is lost of a teamset's list of two descriptions, "a" and "b", of which something cannot be read: that, with a line
// that names the key. Other teamsets have all of theirs, and the next description of the teamset is stored.
func TestUnreadableLists(t *testing.T) {
	server := natstest.Start(t)
	conn, js := natstest.Client(t, server.URL())
	digest := func(payload string) string {
		sum := sha256.Sum256([]byte(payload))
		return hex.EncodeToString(sum[:])
	}
	entry := func(payload string) string {
		return fmt.Sprintf(`{"digest":%q,"sent":"2026-03-01T10:15:00Z"}`, digest(payload))
	}
	for name, test := range map[string]struct{ list, left, says string }{
		"both":              {"[" + entry("a") + "," + entry("b") + "]", "a b", ""},
		"none":              {"[]", "", ""},
		"an unknown field":  {`[` + entry("a") + `,{"digest":"` + digest("b") + `","sent":"2026-03-01T10:15:00Z","new":1}]`, "a b", ""},
		"a bad time":        {`[` + entry("a") + `,{"digest":"` + digest("b") + `","sent":"then"}]`, "a", "entry 1"},
		"no time":           {`[` + entry("a") + `,{"digest":"` + digest("b") + `"}]`, "a", "entry 1: no time"},
		"no digest":         {`[{"sent":"2026-03-01T10:15:00Z"},` + entry("b") + `]`, "b", "entry 0: no digest"},
		"a digest of kinds": {`[{"digest":"md5:abc","sent":"2026-03-01T10:15:00Z"},` + entry("b") + `]`, "b", "entry 0: no digest"},
		"another kind":      {`[7,` + entry("b") + `,null]`, "b", "entry 0"},
		"another payload":   {`[` + entry("a") + `,{"digest":"` + digest("forged") + `","sent":"2026-03-01T10:15:00Z"}]`, "a", "payload." + digest("forged")},
		"payload gone":      {`[` + entry("a") + `,{"digest":"` + digest("gone") + `","sent":"2026-03-01T10:15:00Z"}]`, "a", ""},
		"no list":           {`{"a":1}`, "", "teamset.team"},
		"cut off":           {"[" + entry("a") + ",", "", "teamset.team"},
		"empty":             {"", "", "teamset.team"},
		"no text":           {"\xff\x00", "", "teamset.team"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := testkit.NewLog()
			config := devicestore.Config{Conn: conn, Bucket: strings.ReplaceAll(name, " ", "_"), Logger: log}
			store := testkit.Must(devicestore.New(t.Context(), config))(t)
			d := farm.DeviceDescription{Sent: time.Unix(1000, 0), Payload: []byte("devices")}
			testkit.NoError(t, store.Put(t.Context(), "sound", d))
			bucket := testkit.Must(js.KeyValue(t.Context(), config.Bucket))(t)
			for key, value := range map[string]string{
				"teamset.team": test.list, "payload." + digest("a"): "a", "payload." + digest("b"): "b", "payload." + digest("forged"): "other",
			} {
				testkit.Must(bucket.Put(t.Context(), key, []byte(value)))(t)
			}
			if got := payloads(t, store, "team"); got != test.left {
				t.Errorf("got %q, want %q", got, test.left)
			}
			if said := log.String(); !strings.Contains(said, test.says) || test.says == "" && said != "" || test.says != "" && !strings.Contains(said, config.Bucket) {
				t.Errorf("the log says %q, want %q", said, test.says)
			}
			if got := payloads(t, store, "sound"); got != "devices" {
				t.Errorf("another teamset: got %q", got)
			}
			testkit.NoError(t, store.Health(t.Context()))
			testkit.NoError(t, store.Put(t.Context(), "team", d))
			if got, want := payloads(t, store, "team"), strings.TrimSpace("devices "+test.left); got != want {
				t.Errorf("with the next one: got %q, want %q", got, want)
			}
		})
	}
}

func payloads(t *testing.T, store *devicestore.Store, teamset string) string {
	t.Helper()
	list := testkit.Must(store.Get(t.Context(), teamset))(t)
	var texts []string
	for _, d := range list {
		texts = append(texts, string(d.Payload))
	}
	return strings.Join(texts, " ")
}

// A payload that is gone or another one is stored again when its description comes again.
func TestPayloadIsStoredAgain(t *testing.T) {
	server := natstest.Start(t)
	d := farm.DeviceDescription{Sent: time.Unix(1000, 0), Payload: []byte("devices")}
	testkit.NoError(t, open(t, server.URL(), devicestore.Config{}).Put(t.Context(), "team", d))
	_, js := natstest.Client(t, server.URL())
	bucket := testkit.Must(js.KeyValue(t.Context(), devicestore.DefaultBucket))(t)
	sum := sha256.Sum256(d.Payload)
	for _, damage := range []func(key string) error{
		func(key string) error { return bucket.Delete(t.Context(), key) },
		func(key string) error { _, err := bucket.PutString(t.Context(), key, "other"); return err },
	} {
		testkit.NoError(t, damage("payload."+hex.EncodeToString(sum[:])))
		store := open(t, server.URL(), devicestore.Config{})
		if got := payloads(t, store, "team"); got != "" {
			t.Errorf("got %q, want nothing", got)
		}
		testkit.NoError(t, store.Put(t.Context(), "team", d))
		if got := payloads(t, open(t, server.URL(), devicestore.Config{}), "team"); got != "devices" {
			t.Errorf("got %q, want what was sent again", got)
		}
	}
}

// A list of which nothing can be read does not fill the log.
func TestUnreadableListIsSaidAFewTimes(t *testing.T) {
	server := natstest.Start(t)
	log := testkit.NewLog()
	store := open(t, server.URL(), devicestore.Config{Logger: log})
	natstest.Put(t, server, devicestore.DefaultBucket, "teamset.team", "[7"+strings.Repeat(",7", 999)+"]")
	if got := payloads(t, store, "team"); got != "" {
		t.Errorf("got %q", got)
	}
	if lines := len(log.Texts()); lines != warnlog.PerMessage {
		t.Errorf("%d lines, want %d", lines, warnlog.PerMessage)
	}
}
