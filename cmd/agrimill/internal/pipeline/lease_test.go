package pipeline_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
)

// ha is the part of a configuration with a lease at an address.
func (w *world) ha(url, more string) string {
	return fmt.Sprintf("ha: {nats_kv: {url: %q, connect_timeout: 1s}, %s}\ndedup: {nats_kv: {url: %q, connect_timeout: 1s}}\n", url, more, w.server.URL())
}

// free leaves the record of somebody who has released the lease: nobody waits for the TTL.
func (w *world) free() {
	w.Helper()
	kv := testkit.Must(w.js.CreateKeyValue(w.Context(), jetstream.KeyValueConfig{Bucket: kvlease.DefaultBucket}))(w)
	testkit.Must(kv.PutString(w.Context(), kvlease.DefaultName, `{"epoch":7,"holder":"another","released":true,"writes":3}`))(w)
}

func (b *agrimill) waitRole(role string) {
	b.w.Helper()
	testkit.Eventually(b.w, "its role is "+role, func() bool { return b.Snapshot().Lease.Role == role })
}

// endpoint is the section endpoints with one of a name.
func (w *world) endpoint(name string) string {
	app := w.gate.Application()
	return fmt.Sprintf("endpoints: [{external_id: \"urn:example:%s\", application_id: %s, software_version_id: %s, capabilities: [{type: %q, direction: RECEIVE}]}]\n",
		name, app.ID, app.SoftwareVersionID, pictures)
}

// endpointID waits until there is an endpoint of a name, and returns its ID.
func (w *world) endpointID(name string) (id string) {
	w.Helper()
	testkit.Eventually(w, "there is the endpoint "+name, func() bool {
		id = w.endpointNow(name)
		return id != ""
	})
	return id
}

// hasEndpoint reports whether there is an endpoint of a name.
func (w *world) hasEndpoint(name string) bool { return w.endpointNow(name) != "" }

func (w *world) endpointNow(name string) string {
	w.Helper()
	for _, e := range testkit.Must(w.gate.Client().ListTenantEndpoints(w.Context(), w.gate.Tenant()))(w) {
		if e.ExternalID == "urn:example:"+name {
			return e.ID
		}
	}
	return ""
}

// checkArrived checks that each message came to the gateway once.
func (w *world) checkArrived(ids []string) {
	w.Helper()
	testkit.Eventually(w, "all have arrived", func() bool {
		arrived := w.arrived()
		return !slices.ContainsFunc(ids, func(id string) bool { return arrived[id] == 0 })
	})
	arrived := w.arrived()
	for _, id := range ids {
		if arrived[id] != 1 {
			w.Errorf("message %s arrived %d times", id, arrived[id])
		}
	}
}

// One of two instances works, in both directions; the other one is ready, starts nothing, and
// takes over when the first one stops. A reload changes neither.
func TestInstancesWorkOneAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.free()
	text := func(name, topic string) string {
		return w.head() + w.natsSink() + strings.Replace(w.ha(w.server.URL(), "ttl: 5m"), "dedup: {", "dedup: {instance: mill "+name+", ", 1) + w.endpoint(name) +
			"routes:\n" + route("farm-data", "all", "", topic) + w.outRoute()
	}
	a := w.start(text("a", "{type|none}"))
	a.waitRole("holder")
	b := w.start(text("b", "{type|none}"))
	b.waitRole("standby")
	b.waitReady()
	a.waitReady()
	testkit.Eventually(t, "the standby has looked at the lease", func() bool { return b.Snapshot().Lease.Error == "" })
	if s := b.Snapshot(); s.Gateway.State != admin.GatewayStandby || s.Lease.Epoch != 0 || s.Lease.Target == "" {
		t.Errorf("the standby: %s", w.asJSON(s))
	}
	testkit.Eventually(t, "the standby names the holder", func() bool { return b.Snapshot().Lease.Holder == "mill a" })
	if c := b.check("lease"); !c.OK || c.Message != "standby: mill a holds the lease" {
		t.Errorf("the standby: %+v", c)
	}
	if c := b.check("gateway"); !c.OK || c.Message != "mill a has the event stream" {
		t.Errorf("the standby: %+v", c)
	}
	if s := a.Snapshot(); s.Gateway.State != admin.GatewayConnected || s.Lease.Epoch != 8 || s.Lease.Until.IsZero() {
		t.Errorf("the holder: %s", w.asJSON(s))
	}

	w.send(taskData, 20)
	var ids []string
	for range 10 {
		ids = append(ids, w.put("out.task", taskData))
	}
	w.checkArrived(ids)
	w.waitConfirmed()
	testkit.Eventually(w, "the holder has made its endpoint", func() bool { return w.hasEndpoint("a") })
	if _, err := b.Replay(t.Context(), b.PoisonStore(), []string{"1"}); !errors.Is(err, pipeline.ErrStandby) {
		t.Errorf("the standby replays: %v", err)
	}
	if _, err := a.Replay(t.Context(), a.PoisonStore(), []string{"1"}); err == nil || errors.Is(err, pipeline.ErrStandby) {
		t.Errorf("the holder replays what is not there: %v", err)
	}
	a.reload(text("a", "{type|none}.next"))
	if report := b.reload(strings.Replace(text("b", "{type|none}.next"), "ttl: 5m", "ttl: 4m", 1)); !slices.Equal(report.Restart, []string{"ha"}) {
		t.Errorf("the standby is reloaded: %+v", report)
	}
	w.send(taskData, 20)
	ids = append(ids, w.put("out.task", taskData))
	w.checkArrived(ids)
	w.waitConfirmed()
	if s := a.Snapshot().Lease; s.Epoch != 8 || s.Role != "holder" {
		t.Errorf("the holder after a reload: %s", w.asJSON(s))
	}
	for _, r := range b.Snapshot().Routes {
		if r.Delivered > 0 || r.Returned > 0 {
			t.Errorf("the standby works: %s", w.asJSON(r))
		}
	}
	if w.hasEndpoint("b") {
		t.Error("the standby has made an endpoint")
	}
	if n := w.gate.Streams(); n != 1 {
		t.Errorf("%d streams are open", n)
	}

	b.logs.contains("msg=lease", "role=standby") // it looks from time to time
	a.mustStop()
	b.waitRole("holder")
	b.logs.contains("msg=lease", "role=holder", "was=standby")
	w.send(taskData, 20)
	for range 10 {
		ids = append(ids, w.put("out.task", taskData))
	}
	w.checkArrived(ids)
	w.waitConfirmed()
	testkit.Eventually(w, "the next holder has made its endpoint", func() bool { return w.hasEndpoint("b") })
	b.waitReady()
	b.mustStop()
	w.checkStored()
}

// With consumers: every_instance the routes from brokers share the messages: those of a stream, and the partitions of a
// consumer group in Kafka, of which who is left takes those of the one that stops.
func TestConsumersOnEveryInstance(t *testing.T) {
	t.Parallel()
	const partitions = 8
	w := newWorld(t)
	w.free()
	cluster := kafkatest.Start(t, kfake.SeedTopics(partitions, "reports"))
	producer := testkit.Must(kgo.NewClient(kgo.SeedBrokers(cluster.Addr()), kgo.RecordPartitioner(kgo.ManualPartitioner())))(t)
	defer producer.Close()
	var ids []string
	put := func() { // one into each partition
		t.Helper()
		for partition := range int32(partitions) {
			id := uuid.NewString()
			ids = append(ids, id)
			record := reported(id)
			record.Partition = partition
			testkit.NoError(t, producer.ProduceSync(t.Context(), record).FirstErr())
		}
	}
	text := w.head() + w.natsSink() + w.ha(w.server.URL(), "ttl: 5m, consumers: every_instance") + allRoute + w.outRoute() + w.reportsRoute(cluster, "")
	delivered := func(b *agrimill, route int) uint64 { return b.Snapshot().Routes[route].Delivered }
	a := w.start(text)
	a.waitRole("holder")
	a.waitReady()
	b := w.start(text)
	b.waitRole("standby")
	b.waitReady()
	testkit.Eventually(w, "both carry messages of the stream to the gateway", func() bool {
		ids = append(ids, w.put(fmt.Sprintf("out.task.%d", len(ids)), taskData))
		return delivered(a, 1) > 0 && delivered(b, 1) > 0
	})
	sent := uint64(0)
	testkit.Eventually(w, "both carry messages of Kafka to the gateway", func() bool {
		put()
		sent += partitions
		return delivered(a, 2) > 0 && delivered(b, 2) > 0
	})
	w.checkArrived(ids)
	testkit.Eventually(w, "all are counted", func() bool { return delivered(a, 2)+delivered(b, 2) == sent })
	before := []uint64{delivered(a, 2), delivered(b, 2)}
	put()
	w.checkArrived(ids)
	testkit.Eventually(w, "each has carried its half", func() bool {
		return delivered(a, 2)-before[0] == partitions/2 && delivered(b, 2)-before[1] == partitions/2
	})
	w.waitConfirmed()
	if n := delivered(b, 0); n > 0 {
		t.Errorf("the standby has delivered %d messages of the gateway", n)
	}

	a.mustStop()
	b.waitRole("holder")
	put()
	w.checkArrived(ids)
	b.finish()
}

// NATS and then the lease can be reached some time after the start.
func TestLeaseIsOpenedLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.free()
	w.server.Stop()
	b := w.start(w.head() + w.natsSink() + w.ha(w.server.URL(), "ttl: 5m") + allRoute)
	b.waitRole("standby")
	b.logs.contains("level=WARN", "part=lease", "unavailable; retrying")
	if c := b.check("lease"); c.OK || c.Message == "" {
		t.Errorf("the lease cannot be looked at: %+v", c)
	}
	testkit.Eventually(w, "the status says why", func() bool { return b.Snapshot().Lease.Error != "" })
	w.restart()
	b.waitRole("holder")
	b.waitReady()
	w.send(taskData, 5)
	b.finish()
}

// Without NATS the holder stops at the end of its time and says so, although its sink, in Kafka, could take more: nothing is
// stored, and it lets go of its sources. It carries on from there when it has the lease again.
func TestWithoutTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.free()
	cluster := kafkatest.Start(t, kfake.SeedTopics(1, "reports", "agrimill.lake"))
	producer := testkit.Must(kgo.NewClient(kgo.SeedBrokers(cluster.Addr())))(t)
	defer producer.Close()
	way := natstest.NewProxy(t, w.server.URL())
	b := w.start(w.head() + fmt.Sprintf("sinks:\n  lake: {kafka: {brokers: %q}}\npoison: {sink: lake}\n", cluster.Addr()) +
		w.ha(way.URL(), brief+", stop_without_nats: true") + "routes:\n  - {name: lake, from: {gateway: all}, to: {sink: lake, topic: lake}}\n" +
		w.outRoute() + w.reportsRoute(cluster, ""))
	b.waitRole("holder")
	var ids []string
	put := func() { // one from each broker, which come back from the gateway
		t.Helper()
		ids = append(ids, w.put("out.task", taskData), uuid.NewString())
		testkit.NoError(t, producer.ProduceSync(t.Context(), reported(ids[len(ids)-1])).FirstErr())
	}
	stored := func(want int) {
		t.Helper()
		if n := len(kafkatest.Read(t, cluster.Addr(), "agrimill.lake")); n != want {
			t.Errorf("%d records are stored, want %d", n, want)
		}
	}
	put()
	w.checkArrived(ids)
	w.waitConfirmed()
	stored(2)

	way.Hang()
	b.waitRole("standby")
	b.logs.contains("level=ERROR", "lease lost; nothing is handled or confirmed until it is acquired again")
	testkit.Eventually(w, "the stream is closed", func() bool { return w.gate.Streams() == 0 })
	sent := w.gate.Stats(gatewaytest.OpSendMessage).Requests
	put()
	w.send(taskData, 5)
	testkit.Eventually(w, "the check of the lease fails", func() bool { return !b.check("lease").OK })
	stored(2)
	if n := w.gate.Stats(gatewaytest.OpSendMessage).Requests; n != sent {
		t.Errorf("%d messages went to the gateway without the lease", n-sent)
	}
	if s := b.Snapshot(); s.Lease.Lost != 1 || s.Routes[1].Delivered != 1 || s.Routes[2].Delivered != 1 {
		t.Errorf("without the lease: %s", w.asJSON(s))
	}

	way.Resume()
	b.waitRole("holder")
	put()
	w.checkArrived(ids)
	w.waitConfirmed()
	stored(len(ids) + 5)
	b.mustStop()
}
