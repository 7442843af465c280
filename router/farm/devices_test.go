package farm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agrimill/agrimill/farmdata/efdi/efdipb"
	"github.com/agrimill/agrimill/farmdata/geo"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
	"github.com/agrimill/agrimill/internal/testkit/poisonqueue"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/router/farm/devicestoretest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

const (
	descriptionType = "iso:11783:-10:device_description:protobuf"
	timeLogType     = "iso:11783:-10:time_log:protobuf"
)

// scaled is the description of the machine of farmdatatest.TimeLog with another scale of its
// working width.
func scaled(t testing.TB, scale float64) []byte {
	t.Helper()
	var description efdipb.TaskData
	testkit.NoError(t, proto.Unmarshal(farmdatatest.Description(t), &description))
	description.Device[0].ValuePresentation[0].Scale = scale
	return farmdatatest.Marshal(t, &description)
}

// sentBy is a message of a teamset.
func sentBy(messageType, tenant, teamset string, at time.Time, payload []byte) *message.Message {
	msg := received(payload)
	msg.UUID = fmt.Sprint(tenant, teamset, at.UnixNano(), messageType)
	msg.Metadata.Set(gateway.KeyMessageType, messageType)
	msg.Metadata.Set(gateway.KeyTenantID, tenant)
	msg.Metadata.Set(gateway.KeyTeamsetContextID, teamset)
	msg.Metadata.Set(gateway.KeySentTimestamp, at.Format(time.RFC3339))
	return msg
}

func newDevices(t testing.TB, config farm.DevicesConfig) *farm.Devices {
	t.Helper()
	if config.Store == nil {
		store := testkit.Must(farm.NewMemoryDevices(farm.MemoryDevicesConfig{}))(t)
		config.Store = store
	}
	return testkit.Must(farm.NewDevices(config))(t)
}

func newRecords(t testing.TB, devices *farm.Devices) message.HandlerFunc {
	t.Helper()
	return testkit.Must(farm.NewRecords(farm.RecordsConfig{ReadConfig: farm.ReadConfig{Devices: devices}}))(t)
}

// width is the first working width in a message with records.
func width(t testing.TB, msg *message.Message) float64 {
	t.Helper()
	var record struct{ Values map[string]float64 }
	lines := bytes.Split(msg.Payload, []byte("\n"))
	testkit.NoError(t, json.Unmarshal(lines[1], &record))
	return record.Values["0043_DET-1"]
}

func TestMemoryDevices(t *testing.T) {
	devicestoretest.Run(t, devicestoretest.Suite{New: func(t *testing.T) farm.DeviceStore {
		return testkit.Must(farm.NewMemoryDevices(farm.MemoryDevicesConfig{}))(t)
	}})
}

// What was not used for the longest time is forgotten first; one teamset cannot keep the room of all.
func TestMemoryDevicesAreBounded(t *testing.T) {
	store := testkit.Must(farm.NewMemoryDevices(farm.MemoryDevicesConfig{MaxMemory: 10 * (100 + 64)}))(t)
	put := func(teamset string, i int) {
		t.Helper()
		payload := bytes.Repeat([]byte{byte(i)}, 100)
		testkit.NoError(t, store.Put(t.Context(), teamset, farm.DeviceDescription{Sent: time.Unix(int64(i), 0), Payload: payload}))
	}
	count := func(teamset string) int {
		t.Helper()
		list := testkit.Must(store.Get(t.Context(), teamset))(t)
		return len(list)
	}
	for i := range 10 {
		put(fmt.Sprint(i), i)
	}
	count("0") // used
	put("10", 10)
	if count("0") != 1 || count("1") != 0 || count("2") != 1 || count("10") != 1 {
		t.Error("not the teamset was forgotten that was not used for the longest time")
	}
	for i := range 100 {
		put("many", i)
	}
	if got := count("many"); got < 1 || got > 10 {
		t.Errorf("%d descriptions of one teamset", got)
	}
	if list, _ := store.Get(t.Context(), "many"); list[len(list)-1].Sent.Unix() != 99 {
		t.Errorf("the last description is of %v", list[len(list)-1].Sent)
	}
	if err := store.Put(t.Context(), "large", farm.DeviceDescription{Payload: make([]byte, 2000)}); err != nil || count("large") != 0 {
		t.Errorf("%v; %d descriptions that are too large", err, count("large"))
	}
}

// A tenant with many teamsets forgets its own, and none of one that has fewer.
func TestMemoryIsDividedAmongTenants(t *testing.T) {
	store := testkit.Must(farm.NewMemoryDevices(farm.MemoryDevicesConfig{MaxMemory: 100 * (100 + 64)}))(t)
	payload := bytes.Repeat([]byte("x"), 100)
	put := func(tenant string, i int) {
		t.Helper()
		testkit.NoError(t, store.Put(t.Context(), fmt.Sprint(tenant, i), farm.DeviceDescription{Payload: payload, Tenant: tenant}))
	}
	put("small", 0)
	for i := range 500 {
		put("large", i)
	}
	if list := testkit.Must(store.Get(t.Context(), "small0"))(t); len(list) != 1 {
		t.Errorf("got %d descriptions of the tenant that has fewer, want the one", len(list))
	}
}

// describedAt is what a teamset said at a time.
type describedAt struct {
	at    time.Time
	scale float64
}

// The description that held when a log was sent decodes it: whatever the order in which descriptions arrive, however often one
// is repeated, also when an implement is changed and changed back, and whatever another tenant says under the same
// ID. Ground truth is the list of what was sent and has arrived.
func TestDescriptionsInAnyOrder(t *testing.T) {
	payloads, logs := map[float64][][]byte{}, farmdatatest.TimeLog(t, 1)
	for i := range 3 {
		scale := float64(1+i) / 1024
		payloads[scale] = [][]byte{scaled(t, scale), farmdatatest.Marshal(t, &anypb.Any{Value: scaled(t, scale)})} // two encodings
	}
	for seed := range uint64(25) {
		random := rand.New(rand.NewPCG(seed, 1))
		records := newRecords(t, newDevices(t, farm.DevicesConfig{Wait: -1}))
		start := time.Date(2026, 5, 4, 6, 0, 0, 0, time.UTC)
		sent := map[string][]describedAt{} // by tenant
		for _, tenant := range []string{"a", "b"} {
			scale := float64(1+random.IntN(3)) / 1024
			for i := range 12 {
				if random.IntN(3) == 0 {
					scale = float64(1+random.IntN(3)) / 1024
				}
				sent[tenant] = append(sent[tenant], describedAt{start.Add(time.Duration(10*i) * time.Second), scale})
			}
			random.Shuffle(12, func(i, j int) { sent[tenant][i], sent[tenant][j] = sent[tenant][j], sent[tenant][i] })
		}
		arrived := map[string][]describedAt{}
		for range 60 {
			tenant := string(rune('a' + random.IntN(2)))
			if random.IntN(2) == 0 && len(sent[tenant]) > 0 {
				d := sent[tenant][0]
				arrived[tenant] = append(arrived[tenant], d)
				if random.IntN(4) > 0 { // else it is redelivered
					sent[tenant] = sent[tenant][1:]
				}
				testkit.Must(records(sentBy(descriptionType, tenant, "team", d.at, payloads[d.scale][random.IntN(2)])))(t)
				continue
			}
			at := start.Add(time.Duration(random.IntN(150)-10) * time.Second)
			out, err := records(sentBy(timeLogType, tenant, "team", at, logs))
			if err != nil || len(out) != 1 {
				t.Fatalf("seed %d: %d messages, %v", seed, len(out), err)
			}
			want, wantState := truth(arrived[tenant], at)
			if got, state := width(t, out[0]), out[0].Metadata[farm.KeyDevices]; got != want || state != wantState {
				t.Fatalf("seed %d: a width of %v, %s; want %v, %s, of %v at %v", seed, got, state, want, wantState, arrived[tenant], at)
			}
		}
	}
}

// truth is what has to come of a log.
func truth(arrived []describedAt, at time.Time) (width float64, state string) {
	if len(arrived) == 0 {
		return 9000, farm.DevicesMissing
	}
	first, last, state := arrived[0], describedAt{}, farm.DevicesDescribed
	for _, d := range arrived {
		if d.at.Before(first.at) {
			first = d
		}
		if !d.at.After(at) && (last.scale == 0 || !d.at.Before(last.at)) {
			last = d
		}
		if d.scale != arrived[0].scale {
			state = farm.DevicesAmbiguous
		}
	}
	if last.scale == 0 {
		last = first
	}
	return 9000 * last.scale, state
}

// A time log is decoded with the description of its own teamset, whatever comes in between and
// however late the description is, and the same messages come of it each time.
func TestInterleavings(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { interleave(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func interleave(t *testing.T, random *rand.Rand) {
	// What is sent, and what has to come of it: the oracle knows the scales only.
	start := time.Now()
	var arriving []*message.Message
	want := map[string]float64{} // by the name of the log, which is its file name
	for _, tenant := range []string{"a", "b"} {
		for team := range 3 {
			teamset := fmt.Sprint("team ", team) // both tenants have it
			scale := float64(1+random.IntN(8)) / 1024
			described := random.IntN(5) > 0
			if described {
				for range 1 + random.IntN(2) { // one is sent again
					arriving = append(arriving, sentBy(descriptionType, tenant, teamset, start, scaled(t, scale)))
				}
			}
			for i := range 1 + random.IntN(3) {
				log := sentBy(timeLogType, tenant, teamset, start.Add(time.Duration(1+i)*time.Second), farmdatatest.TimeLog(t, 1+i))
				name := fmt.Sprint(tenant, team, i)
				log.Metadata.Set(gateway.KeyFilename, name+".pb")
				want[name] = 9000
				if described {
					want[name] = 9000 * scale
				}
				arriving = append(arriving, log)
			}
		}
	}
	random.Shuffle(len(arriving), func(i, j int) { arriving[i], arriving[j] = arriving[j], arriving[i] })

	var mu sync.Mutex
	got := map[string]float64{}
	to := sinks.FromPublisher("broker", publisherFunc(func(_ string, out ...*message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		for _, msg := range out {
			name, _, _ := strings.Cut(msg.Metadata[gateway.KeyFilename], "-")
			got[name] = width(t, msg)
			missing := msg.Metadata[farm.KeyDevices] == farm.DevicesMissing
			if missing != (want[name] == 9000) || msg.Metadata[farm.KeyDevices] == "" {
				t.Errorf("%s: devices are %q", name, msg.Metadata[farm.KeyDevices])
			}
		}
		return nil
	}), sinks.PublisherConfig{})
	source := gochannel.NewGoChannel(gochannel.Config{}, nil)
	r, err := router.New(router.Config{Poison: to}, nil)
	if err == nil {
		err = r.Add(router.Route{Name: "farm", From: source, Topic: "data", To: to, ToTopic: "data",
			Transform: newRecords(t, newDevices(t, farm.DevicesConfig{}))})
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()
	<-r.Running()
	for _, msg := range arriving {
		testkit.NoError(t, source.Publish("data", msg))
		time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
	}
	time.Sleep(2 * farm.DefaultDevicesWait)
	synctest.Wait()
	mu.Lock()
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	mu.Unlock()
	stop()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// Values of a device that the description does not have are told: nobody could say what they are.
func TestLogOfADeviceThatIsNotDescribed(t *testing.T) {
	for name, test := range map[string]struct {
		element int64
		want    string
	}{"described": {-1, ""}, "another": {-9, "no device has the device element"}} {
		devices := newDevices(t, farm.DevicesConfig{})
		records := newRecords(t, devices)
		toMap := testkit.Must(farm.NewMap(farm.MapConfig{Layers: []geo.Layer{geo.Points}, ReadConfig: farm.ReadConfig{Devices: devices}}))(t)
		testkit.Must(records(sentBy(descriptionType, "a", "team", farmdatatest.LogStart, farmdatatest.Description(t))))(t)
		log := farmdatatest.Marshal(t, &efdipb.TimeLog{Time: []*efdipb.Time{{
			Start: timestamppb.New(farmdatatest.LogStart), PositionStart: &efdipb.Position{North: 52.5, East: 7.5},
			DataLogValue: []*efdipb.DataLogValue{{Ddi: 0x43, Value: 9000, DeviceElement: &efdipb.UID{Number: test.element}}},
		}}})
		for kind, transform := range map[string]message.HandlerFunc{"records": records, "map": toMap} {
			out, err := transform(sentBy(timeLogType, "a", "team", farmdatatest.LogStart, log))
			if err != nil || len(out) != 1 {
				t.Fatalf("%s, %s: %d messages, %v", name, kind, len(out), err)
			}
			if told := out[0].Metadata[farm.KeyFindings] == "1"; told != (test.want != "") || kind == "records" && !bytes.Contains(out[0].Payload, []byte(test.want)) {
				t.Errorf("%s, %s: got %v and %s, want %q told", name, kind, out[0].Metadata, out[0].Payload, test.want)
			}
		}
	}
}

// storedDescription is a store that has the same description of every teamset.
type storedDescription []byte

func (s storedDescription) Put(context.Context, string, farm.DeviceDescription) error { return nil }
func (s storedDescription) Get(context.Context, string) ([]farm.DeviceDescription, error) {
	return []farm.DeviceDescription{{Payload: s}}, nil
}

// A stored description that describes nothing that can be read here is missing.
func TestStoredDescriptionThatCannotBeRead(t *testing.T) {
	whole := farmdatatest.Description(t)
	for name, test := range map[string]struct {
		payload []byte
		want    string
	}{
		"whole": {whole, farm.DevicesDescribed}, "empty": {nil, farm.DevicesMissing}, "cut": {whole[:5], farm.DevicesMissing},
		"other bytes": {[]byte("\xff\xff\xff"), farm.DevicesMissing}, "text": {[]byte("no description"), farm.DevicesMissing},
	} {
		devices := newDevices(t, farm.DevicesConfig{Store: storedDescription(test.payload)})
		list, state, err := devices.Lookup(sentBy(timeLogType, "a", "team", farmdatatest.LogStart, nil))
		if err != nil || state != test.want || (len(list) > 0) != (test.want == farm.DevicesDescribed) {
			t.Errorf("%s: got %d devices, %q (%v), want %q", name, len(list), state, err, test.want)
		}
	}
}

// A teamset that is described in two ways is told; a log is decoded with what was sent before it,
// also when it comes after what was sent later.
func TestTeamsetDescribedInTwoWays(t *testing.T) {
	log := testkit.NewLog()
	devices := newDevices(t, farm.DevicesConfig{Logger: log})
	records := newRecords(t, devices)
	start := time.Now().Truncate(time.Second)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	decode := func(seconds int) (float64, string) {
		t.Helper()
		out, err := records(sentBy(timeLogType, "a", "team", at(seconds), farmdatatest.TimeLog(t, 1)))
		if err != nil || len(out) != 1 {
			t.Fatalf("%d messages, %v", len(out), err)
		}
		return width(t, out[0]), out[0].Metadata[farm.KeyDevices]
	}
	describe := func(seconds int, scale float64) {
		t.Helper()
		if out, err := records(sentBy(descriptionType, "a", "team", at(seconds), scaled(t, scale))); err != nil || len(out) != 0 {
			t.Fatalf("%d messages, %v", len(out), err)
		}
	}
	describe(10, 0.5)
	describe(20, 0.5) // the same
	if got, state := decode(15); got != 4500 || state != farm.DevicesDescribed || len(log.Texts()) > 0 || devices.Redescribed() != 0 {
		t.Errorf("a width of %v, %s; redescribed %d times; log: %s", got, state, devices.Redescribed(), log)
	}
	describe(30, 0.25)
	describe(30, 0.25) // once more
	if got := devices.Redescribed(); got != 1 {
		t.Errorf("redescribed %d times, want 1", got)
	}
	if !strings.Contains(log.String(), "described in another way") || !strings.Contains(log.String(), "team") {
		t.Errorf("log: %s", log)
	}
	for seconds, want := range map[int]float64{5: 4500, 10: 4500, 29: 4500, 30: 2250, 40: 2250} {
		if got, state := decode(seconds); got != want || state != farm.DevicesAmbiguous {
			t.Errorf("a log of second %d has a width of %v, %s; want %v", seconds, got, state, want)
		}
	}
}

// A service need not name the tenant. What one endpoint has received does not describe the machines of another farm, whose
// teamset may have the same ID.
func TestTeamsetsWithoutATenant(t *testing.T) {
	devices := newDevices(t, farm.DevicesConfig{Wait: -1})
	transform := newRecords(t, devices)
	at := time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)
	to := func(endpoint, messageType string, payload []byte) *message.Message {
		msg := sentBy(messageType, "", "1", at, payload)
		msg.Metadata.Set(gateway.KeyReceivingEndpointID, endpoint)
		return msg
	}
	_ = testkit.Must(transform(to("a", descriptionType, farmdatatest.Description(t))))(t)
	for endpoint, want := range map[string]string{"a": farm.DevicesDescribed, "b": farm.DevicesMissing} {
		_, state, err := devices.Lookup(to(endpoint, timeLogType, farmdatatest.TimeLog(t, 1)))
		if err != nil || state != want {
			t.Errorf("endpoint %s: %s, %v; want %s", endpoint, state, err, want)
		}
	}
}

// Messages from a broker that do not say when they were sent, or say zero, have the times at which the broker stored them.
func TestTimesOfTheBroker(t *testing.T) {
	for _, sent := range []string{"", "0001-01-01T00:00:00Z"} {
		records := newRecords(t, newDevices(t, farm.DevicesConfig{Wait: -1}))
		stored := func(messageType string, seconds int64, payload []byte) *message.Message {
			msg := sentBy(messageType, "a", "team", time.Time{}, payload)
			msg.Metadata[gateway.KeySentTimestamp] = sent
			msg.SetContext(msgctx.With(t.Context(), msgctx.Value{Stored: time.Unix(seconds, 0)}))
			return msg
		}
		for seconds, scale := range map[int64]float64{10: 0.5, 20: 0.25, 30: 0.5} {
			testkit.Must(records(stored(descriptionType, seconds, scaled(t, scale))))(t)
		}
		for seconds, want := range map[int64]float64{15: 4500, 25: 2250, 35: 4500} {
			out, err := records(stored(timeLogType, seconds, farmdatatest.TimeLog(t, 1)))
			if err != nil || len(out) != 1 || width(t, out[0]) != want {
				t.Errorf("%q: a log of second %d: %d messages, %v, want a width of %v", sent, seconds, len(out), err, want)
			}
		}
	}
}

// A filter for machines sees those of the teamset.
func TestFilterByTheMachineOfATeamset(t *testing.T) {
	devices := newDevices(t, farm.DevicesConfig{Wait: -1})
	config := farm.FilterConfig{Machine: []string{"mower"}, ReadConfig: farm.ReadConfig{Devices: devices}}
	log := sentBy(timeLogType, "a", "team", time.Now(), farmdatatest.TimeLog(t, 1))
	if selects(t, config, log) {
		t.Error("a log of an unknown machine matches")
	}
	if !selects(t, config, sentBy(descriptionType, "a", "team", time.Now(), farmdatatest.Description(t))) {
		t.Error("the description does not match")
	}
	if !selects(t, config, log) {
		t.Error("a log of the machine does not match")
	}
	log.Metadata.Set(gateway.KeyMessageType, "app:telemetry:protobuf") // told by what it looks like
	if !selects(t, config, log) {
		t.Error("a log of the machine with another type does not match")
	}
}

// A store that fails is an outage: nothing is acknowledged without it, and nothing poisoned.
func TestDeviceStoreFails(t *testing.T) {
	store := &failingStore{err: errors.New("no answer")}
	records := newRecords(t, newDevices(t, farm.DevicesConfig{Store: store}))
	for _, msg := range []*message.Message{
		sentBy(descriptionType, "a", "team", time.Now(), farmdatatest.Description(t)), sentBy(timeLogType, "a", "team", time.Now(), farmdatatest.TimeLog(t, 1)),
	} {
		out, err := records(msg)
		if router.ClassOf(err) != router.ClassOutage || len(out) > 0 && err == nil {
			t.Errorf("%d messages, %v of class %v, want an outage", len(out), err, router.ClassOf(err))
		}
	}
}

type failingStore struct{ err error }

func (s *failingStore) Put(context.Context, string, farm.DeviceDescription) error { return s.err }
func (s *failingStore) Get(context.Context, string) ([]farm.DeviceDescription, error) {
	return nil, s.err
}

// A time log that is replayed comes once, so it waits where it is: for the description, or until it is decoded without. Otherwise a
// process that only replays, and knows no devices, could never replay it.
func TestReplayedTimeLogWaits(t *testing.T) {
	for name, described := range map[string]bool{farm.DevicesMissing: false, farm.DevicesDescribed: true} {
		synctest.Test(t, func(t *testing.T) {
			devices, queue := newDevices(t, farm.DevicesConfig{}), &poisonqueue.Queue{}
			record := sentBy(timeLogType, "a", "team", time.Now(), farmdatatest.TimeLog(t, 1))
			record.Metadata[router.KeyPoisonRoute], record.Metadata[router.KeyPoisonCount] = "farm", "1"
			testkit.NoError(t, queue.Publish(router.DefaultPoisonTopic, record))
			r := testkit.Must(router.New(router.Config{Poison: queue}, nil))(t)
			defer r.Close()
			var state string
			to := sinks.FromPublisher("broker", publisherFunc(func(_ string, out ...*message.Message) error {
				state = out[0].Metadata[farm.KeyDevices]
				return nil
			}), sinks.PublisherConfig{})
			testkit.NoError(t, r.Add(router.Route{
				Name: "farm", From: gochannel.NewGoChannel(gochannel.Config{}, nil), Topic: "t", Transform: newRecords(t, devices), To: to,
			}))
			if described {
				time.AfterFunc(10*time.Second, func() {
					testkit.Must(newRecords(t, devices)(sentBy(descriptionType, "a", "team", time.Now(), farmdatatest.Description(t))))(t)
				})
			}
			began := time.Now()
			report, err := r.Replay(t.Context(), queue, router.PoisonSelection{All: true})
			if err != nil || report.Sent != 1 || state != name {
				t.Errorf("%+v, %v after %v, devices %q; want one sent, %q", report, err, time.Since(began), state, name)
			}
		})
	}
}

// One tenant whose teamsets are never described leaves the others room to wait, and all of them get on.
func TestWaitingTeamsetsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		devices := newDevices(t, farm.DevicesConfig{Wait: time.Minute})
		filter := testkit.Must(farm.NewFilter(farm.FilterConfig{Machine: []string{"mower"}, ReadConfig: farm.ReadConfig{Devices: devices}}))(t)
		payload := farmdatatest.TimeLog(t, 1)
		waits := func(tenant string, i int) bool {
			_, err := filter.Select(sentBy(timeLogType, tenant, fmt.Sprint(i), time.Now(), payload))
			return errors.Is(err, farm.ErrNoDevices)
		}
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				if !waits("bad", i) {
					t.Error("one of the first teamsets does not wait")
				}
			})
		}
		wg.Wait()
		if waits("bad", 1000) || !waits("good", 0) || devices.Waiting() != 1001 {
			t.Errorf("%d teamsets wait, want 1,000 of one tenant and one of another", devices.Waiting())
		}
		time.Sleep(time.Minute)
		if waits("bad", 0) || waits("good", 0) {
			t.Error("a teamset waits for longer than it may")
		}
		time.Sleep(time.Hour)
		if n := devices.Waiting(); n != 0 {
			t.Errorf("%d teamsets are remembered", n)
		}
		if !waits("bad", 2000) {
			t.Error("there is no room again")
		}
	})
}

// brokenStore cannot be asked.
type brokenStore struct{ farm.DeviceStore }

func (brokenStore) Get(context.Context, string) ([]farm.DeviceDescription, error) {
	return nil, errors.New("nobody answers")
}

// What only shows messages knows the devices, and neither waits, nor learns, nor fails with the store.
func TestReadOnlyDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		devices := newDevices(t, farm.DevicesConfig{})
		show := func(devices *farm.Devices, msg *message.Message) (named int) {
			t.Helper()
			inspector := testkit.Must(farm.NewInspector(farm.ReadConfig{Devices: devices}))(t)
			summary := testkit.Must(inspector.Summarize(msg))(t)
			return len(summary.Sets[0].Devices)
		}
		now := time.Now()
		description := sentBy(descriptionType, "tenant", "mower", now, farmdatatest.Description(t))
		log := sentBy(timeLogType, "tenant", "mower", now, farmdatatest.TimeLog(t, 2))
		show(devices.ReadOnly(), description)
		if got := show(devices.ReadOnly(), log); got != 0 || devices.Waiting() != 0 || time.Since(now) != 0 {
			t.Errorf("%d devices, %d teamsets wait, after %s", got, devices.Waiting(), time.Since(now))
		}
		show(devices, description)
		if got := show(devices.ReadOnly(), log); got != 1 {
			t.Errorf("%d devices, want 1", got)
		}
		if list, state, err := devices.Lookup(log); err != nil || state != farm.DevicesDescribed || len(list) != 1 {
			t.Errorf("%d devices, %q, %v", len(list), state, err)
		}
		broken := newDevices(t, farm.DevicesConfig{Store: brokenStore{}})
		if got := show(broken.ReadOnly(), log); got != 0 {
			t.Errorf("%d devices, want none", got)
		}
		if _, _, err := broken.Lookup(log); router.ClassOf(err) != router.ClassOutage {
			t.Errorf("got %v, want an outage", err)
		}
	})
}

// A description that comes after its time log for the same endpoint is known to the log that waits, in front of it, for it; and
// what comes is stored in the order in which it came.
func TestDescriptionBehindItsLog(t *testing.T) {
	for name, filler := range map[string]string{"small": "", "larger than an event": strings.Repeat("x", 40<<10)} {
		t.Run(name, func(t *testing.T) {
			server := gatewaytest.New(t, gatewaytest.Config{})
			types := []string{descriptionType, timeLogType}
			sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: types})
			server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: types, Subscribe: types})
			sub := testkit.Must(subscriber.New(subscriber.Config{Client: server.Client()}, nil))(t)
			devices := newDevices(t, farm.DevicesConfig{Wait: time.Hour})
			records := newRecords(t, devices)
			var to testkit.Publisher
			r, err := router.New(router.Config{Poison: sinks.FromPublisher("poison", &to, sinks.PublisherConfig{})}, nil)
			if err == nil {
				err = r.Add(router.Route{Name: "farm", From: sub, Topic: subscriber.AllData, To: sinks.FromPublisher("broker", &to, sinks.PublisherConfig{}), ToTopic: "records",
					Transform: func(msg *message.Message) ([]*message.Message, error) {
						out, err := records(msg)
						if err == nil && len(out) == 0 { // a description
							out = []*message.Message{msg}
						}
						return out, err
					}})
			}
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			result := make(chan error, 1)
			go func() { result <- r.Run(ctx) }()
			send := func(teamset, messageType string, payload []byte) {
				t.Helper()
				testkit.Must(server.Send(gatewaytest.SendRequest{From: sender.ID, TeamsetContextID: teamset, MessageType: messageType, Payload: payload}))(t)
			}
			payload := farmdatatest.Description(t)
			if filler != "" {
				var large efdipb.TaskData
				testkit.NoError(t, proto.Unmarshal(payload, &large))
				large.Device[0].SoftwareVersion = filler
				payload = farmdatatest.Marshal(t, &large)
			}
			send("one", timeLogType, farmdatatest.TimeLog(t, 1))
			send("two", timeLogType, farmdatatest.TimeLog(t, 2))
			testkit.Eventually(t, "a log waits", func() bool { return devices.Waiting() == 1 })
			send("two", descriptionType, payload)
			send("one", descriptionType, payload)
			testkit.Eventually(t, "everything is stored", func() bool { return len(to.Messages("records")) == 4 })
			var got []string
			for _, msg := range to.Messages("records") {
				got = append(got, msg.Metadata[gateway.KeyTeamsetContextID]+" "+msg.Metadata[farm.KeyDevices])
			}
			if want := []string{"one described", "two described", "two ", "one "}; !slices.Equal(got, want) {
				t.Errorf("stored %q, want %q", got, want)
			}
			stop()
			testkit.NoError(t, <-result)
		})
	}
}
