package admin_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return noon.Add(-d) }

// wellSnapshot is a pipeline with two routes from the gateway and one to it, where all is right.
func wellSnapshot() admin.Snapshot {
	depth := int64(0)
	route := func(name string, direction admin.Direction, from, to admin.Place) admin.Route {
		return admin.Route{RouteHealth: router.RouteHealth{Name: name, State: router.StateRunning, Since: ago(time.Hour)}, Direction: direction, From: from, To: to}
	}
	farm, gate := admin.Place{Kind: "nats", Sink: "farm"}, admin.Place{Kind: "gateway"}
	s := admin.Snapshot{
		Time: noon, Started: ago(time.Hour), State: admin.StateRunning, Config: admin.ConfigState{LoadedAt: ago(time.Hour)},
		Gateway:    admin.Gateway{Host: "gateway.example", State: admin.GatewayConnected, Since: ago(time.Hour)},
		Subscriber: admin.Subscriber{Totals: admin.Totals{Received: 1004, Confirmed: 1004}},
		Routes:     []admin.Route{route("maps", admin.FromGateway, gate, farm), route("orders", admin.FromGateway, gate, farm), route("back", admin.ToGateway, farm, gate)},
		Sinks:      []admin.Sink{{Name: "farm", Kind: "nats", Target: "nats.example:4222", Up: true, CheckedAt: noon}},
		Dedup:      admin.Dedup{Store: "bbolt", Target: "/var/lib/agrimill/dedup.db", Up: true},
		Poison:     admin.Poison{Sink: "farm", Kind: "nats", Depth: &depth},
	}
	for _, name := range []string{"confirmations", "route maps", "route orders", "route back", "sink farm", "gateway", "gateway answers", "dedup"} {
		s.Checks = append(s.Checks, admin.Check{Name: name, OK: true})
	}
	return s
}

// fail makes a check fail.
func fail(s *admin.Snapshot, name, message string, since time.Duration) {
	for i := range s.Checks {
		if s.Checks[i].Name == name {
			s.Checks[i] = admin.Check{Name: name, Message: message, Since: ago(since)}
			return
		}
	}
	s.Checks = append(s.Checks, admin.Check{Name: name, Message: message, Since: ago(since)})
}

// failRoute makes a route fail in a state.
func failRoute(s *admin.Snapshot, i int, state router.RouteState, message string, since time.Duration) {
	r := &s.Routes[i]
	r.State, r.Since, r.LastError, r.LastErrorAt = state, ago(since), message, noon
	fail(s, "route "+r.Name, string(state)+": "+message, since)
}

func wait(s *admin.Snapshot, kind subscriber.WaitKind, total, count int, longest ...admin.Wait) {
	s.Subscriber.Waits = append(s.Subscriber.Waits, admin.Waits{Kind: kind, Count: count, Total: total, Longest: longest})
}

// situation is what an operator can meet, and what the verdict about it must be.
type situation struct {
	name   string
	change func(s *admin.Snapshot)
	ready  bool
	counts map[admin.ProblemKind]int // the metric agrimill_problems
	says   string
}

const hour = time.Hour

var situations = []situation{
	{"all is right", func(*admin.Snapshot) {}, true, nil, `All is right: messages are received, stored and confirmed.`},
	{"starting", func(s *admin.Snapshot) { s.Checks = nil }, false, nil, `agrimill is starting.`},
	{"draining", func(s *admin.Snapshot) { s.State = admin.StateDraining }, false, nil,
		`agrimill is stopping: it finishes the messages in flight. The others stay with the gateway and the brokers; nothing is lost.`},
	{"ended", func(s *admin.Snapshot) { s.State, s.Error = admin.StateStopped, "the gateway refuses the credentials" }, false, nil,
		`agrimill has stopped: the gateway refuses the credentials. What is not confirmed stays with the gateway and the brokers; nothing is lost. Repair that, and start agrimill again.`},
	{"standby", func(s *admin.Snapshot) {
		s.Gateway.State, s.Lease = admin.GatewayStandby, admin.Lease{Role: "standby", Holder: "barn-1"}
	}, true, nil, `All is right: barn-1 holds the lease and works; this instance stands by.`},
	{"connecting since the last look", func(s *admin.Snapshot) { s.Gateway.State = admin.GatewayConnecting }, true, nil,
		`agrimill is connecting to the gateway, which keeps the messages until then.`},
	{"disconnected since the last look", func(s *admin.Snapshot) { s.Gateway.State = admin.GatewayDisconnected }, true, nil,
		`agrimill is connecting to the gateway, which keeps the messages until then.`},
	{"nothing from the gateway", func(s *admin.Snapshot) { s.Gateway.State = admin.GatewayUnused }, true, nil, `All is right: the routes move messages.`},

	{"the gateway is down", func(s *admin.Snapshot) {
		s.Gateway.State, s.Gateway.LastError, s.Gateway.Advice = admin.GatewayDisconnected, "gateway: connection refused", "check its address"
		fail(s, "gateway", "connection refused", 48*time.Second)
	}, false, map[admin.ProblemKind]int{admin.ProblemGateway: 1},
		`The gateway gateway.example has been disconnected for 48 s: connection refused. New messages stay with the gateway; nothing is lost. Check its address; agrimill continues by itself.`},
	{"the gateway refuses the stream", func(s *admin.Snapshot) {
		s.Gateway.State, s.Gateway.LastError, s.Gateway.RefusedSince, s.Gateway.EndsAt = admin.GatewayDisconnected, "403 Forbidden", ago(2*time.Minute), noon.Add(3*time.Minute)
		fail(s, "gateway", "403 Forbidden", 2*time.Minute)
	}, false, map[admin.ProblemKind]int{admin.ProblemGateway: 1},
		`The gateway gateway.example has refused the event stream for 2 min 0 s: 403 Forbidden. New messages stay with the gateway; nothing is lost; agrimill tries again until 12:03:00 UTC, then exits. Ask the operator of the gateway, or of a proxy in between, why it refuses this application.`},
	{"the token endpoint refuses the client", func(s *admin.Snapshot) {
		s.Gateway.State, s.Gateway.LastError, s.Gateway.TokenFails, s.Gateway.Advice = admin.GatewayDisconnected, "401 Unauthorized", true, "check the client ID and the client secret"
		fail(s, "gateway", "401 Unauthorized", hour)
	}, false, map[admin.ProblemKind]int{admin.ProblemToken: 1},
		`The token endpoint of the gateway gateway.example has given no token for 1 h 0 min: 401 Unauthorized. Nothing is received or confirmed; new messages stay with the gateway; nothing is lost. Check the client ID and the client secret; agrimill continues by itself.`},
	{"a proxy responds for the gateway", func(s *admin.Snapshot) {
		fail(s, "gateway answers", "something other than the gateway answers: send message: status 502 (text/html)", time.Minute)
	}, false, map[admin.ProblemKind]int{admin.ProblemIntermediary: 1},
		`Something between agrimill and the gateway gateway.example has responded in its place for 1 min 0 s: send message: status 502 (text/html). These calls are repeated; nothing is lost. Repair the proxy, ingress or address in between; agrimill continues by itself.`},
	{"the gateway limits the rate", func(s *admin.Snapshot) { s.Gateway.RateLimited = true }, true, map[admin.ProblemKind]int{admin.ProblemRateLimit: 1},
		`The gateway gateway.example has asked for fewer requests for 0 s. Messages and confirmations are slower; nothing is lost. Ask its operator for a higher limit, or stop what else uses this client ID; agrimill continues by itself.`},
	{"the lease is out of reach", func(s *admin.Snapshot) {
		s.Lease = admin.Lease{Role: "holder", Target: "nats.example:4222", Error: "no responders"}
		fail(s, "lease", "no responders", time.Minute)
	}, false, map[admin.ProblemKind]int{admin.ProblemLease: 1},
		`The lease in nats.example:4222 has not been readable or renewable for 1 min 0 s: no responders. The instance that has it works until it ends, then none does; new messages stay with the gateway; nothing is lost. Repair NATS; agrimill continues by itself.`},
	{"the dedup store is on a full disk", func(s *admin.Snapshot) {
		fail(s, "dedup", "write /var/lib/agrimill/dedup.db: no space left on device", time.Minute)
	}, false, map[admin.ProblemKind]int{admin.ProblemDedup: 1},
		`The dedup store bbolt /var/lib/agrimill/dedup.db has been failing for 1 min 0 s: write /var/lib/agrimill/dedup.db: no space left on device. Routes wait, or store again what comes again; nothing is lost. Free space on that disk; agrimill continues by itself.`},
	{"the dedup store is damaged", func(s *admin.Snapshot) {
		fail(s, "dedup", "damaged", time.Minute)
		s.Checks[7].Final = true
	}, false, map[admin.ProblemKind]int{admin.ProblemDedup: 1},
		`The dedup store bbolt /var/lib/agrimill/dedup.db has been failing for 1 min 0 s: damaged. Routes wait, or store again what comes again; nothing is lost. Repair the store; then restart agrimill.`},
	{"the claim check is out of reach", func(s *admin.Snapshot) { fail(s, "claim check", "no such bucket", time.Minute) }, false, map[admin.ProblemKind]int{admin.ProblemClaimCheck: 1},
		`The store of the claim check has been failing for 1 min 0 s: no such bucket. Messages with large payloads wait; nothing is lost. Repair the store; agrimill continues by itself.`},
	{"a sink is down, and all routes wait", func(s *admin.Snapshot) {
		s.Sinks[0].Up = false
		fail(s, "sink farm", "sink farm: sink unavailable: connection refused", 48*time.Second)
		failRoute(s, 0, router.StateOutage, "connection refused", 50*time.Second)
		failRoute(s, 1, router.StateOutage, "connection refused", 50*time.Second)
		s.Routes[0].Open, s.Routes[1].Open, s.Subscriber.Unconfirmed, s.Subscriber.OldestUnconfirmed = 1004, 4, 1004, ago(hour) // four are for both
		wait(s, subscriber.WaitKey, 1004, 2, admin.Wait{What: "e", Name: `the endpoint "barn"`, Since: ago(50 * time.Second), Count: 1000})
	}, false, map[admin.ProblemKind]int{admin.ProblemSink: 1},
		`The sink "farm" (nats nats.example:4222) has been down for 48 s: connection refused. The routes "maps" and "orders" wait with 1,004 messages; nothing is lost. Repair it; agrimill continues by itself.`},
	{"a sink is down, and one of its routes cannot read its source either", func(s *admin.Snapshot) {
		s.Sinks[0].Up = false
		fail(s, "sink farm", "sink farm: sink unavailable: connection refused", 48*time.Second)
		failRoute(s, 0, router.StateOutage, "connection refused", 50*time.Second)
		failRoute(s, 1, router.StateOutage, "source kafka, group farm: unavailable: no leader", 50*time.Second)
	}, false, map[admin.ProblemKind]int{admin.ProblemSink: 1, admin.ProblemRoute: 1},
		`The sink "farm" (nats nats.example:4222) has been down for 48 s: connection refused. The routes "maps" and "orders" wait; nothing is lost. Repair it; agrimill continues by itself. There is 1 more problem.`},
	{"a sink is down, and one of its routes has messages", func(s *admin.Snapshot) {
		s.Sinks[0].Up = false
		fail(s, "sink farm", "sink farm: sink unavailable: connection refused", 48*time.Second)
		s.Routes[0].Open, s.Subscriber.Unconfirmed, s.Subscriber.OldestUnconfirmed = 2, 2, ago(40*time.Second)
	}, false, map[admin.ProblemKind]int{admin.ProblemSink: 1},
		`The sink "farm" (nats nats.example:4222) has been down for 48 s: connection refused. The route "maps" waits with 2 messages; nothing is lost. Repair it; agrimill continues by itself.`},
	{"a sink refuses the credentials", func(s *admin.Snapshot) {
		s.Sinks[0].Up = false
		fail(s, "sink farm", "nats: Authorization Violation", 48*time.Second)
	}, false, map[admin.ProblemKind]int{admin.ProblemSink: 1},
		`The sink "farm" (nats nats.example:4222) has been down for 48 s: nats: Authorization Violation. The routes "maps" and "orders" wait; nothing is lost. Correct the credentials or the permissions; agrimill continues by itself.`},
	{"a source cannot be read", func(s *admin.Snapshot) { failRoute(s, 2, router.StateOutage, "stream not found", time.Minute) }, false, map[admin.ProblemKind]int{admin.ProblemRoute: 1},
		`The route "back" has been waiting for 1 min 0 s: stream not found. Its messages wait where they come from; nothing is lost. Repair what the reason names; agrimill continues by itself.`},
	{"a route has ended", func(s *admin.Snapshot) {
		failRoute(s, 2, router.StateFailed, "consumer is another one's", time.Minute)
		s.Checks[3].Final = true
	}, false, map[admin.ProblemKind]int{admin.ProblemRoute: 1},
		`The route "back" has not been running for 1 min 0 s: consumer is another one's. Its messages stay where they come from; nothing is lost. Repair what the reason names, then restart agrimill.`},
	{"a route that had ended was removed by a reload", func(s *admin.Snapshot) {
		fail(s, "route gone", "failed: consumer is another one's", time.Minute)
		s.Checks[len(s.Checks)-1].Final = true
	}, true, nil, `All is right: messages are received, stored and confirmed.`},
	{"a route poisons everything", func(s *admin.Snapshot) {
		failRoute(s, 0, router.StateFailing, "no field area", time.Minute)
		s.Routes[0].PoisonedInARow = 20
	}, false, map[admin.ProblemKind]int{admin.ProblemRoute: 1},
		`The route "maps" has moved every message to the poison queue for 1 min 0 s: no field area. Its last 20 messages are in the poison queue, confirmed, and nowhere else. Repair the route or its sink, reload, and run agrimill poison replay.`},
	{"no confirmation is accepted", func(s *admin.Snapshot) {
		wait(s, subscriber.WaitTenant, 1004, 1, admin.Wait{What: "t", Name: `the tenant of "barn" (t)`, Since: ago(48 * time.Second), Count: 1004, Reason: "503"})
		fail(s, "confirmations", "…", 48*time.Second)
	}, false, map[admin.ProblemKind]int{admin.ProblemConfirmations: 1},
		`Confirmations for all tenants that have any have failed for 48 s: 503. 1,004 messages are stored and stay with the gateway as well; nothing is lost. Ask the gateway's operator; agrimill continues by itself.`},
	{"confirmations of one tenant fail", func(s *admin.Snapshot) {
		wait(s, subscriber.WaitTenant, 1, 1, admin.Wait{What: "t", Name: `the tenant of "barn" (t)`, Since: ago(48 * time.Second), Count: 1, Reason: "503"})
	}, true, map[admin.ProblemKind]int{admin.ProblemConfirmations: 1},
		`Confirmations for the tenant of "barn" (t) have failed for 48 s: 503. 1 message is stored and stays with the gateway as well; nothing is lost. Ask the gateway's operator; agrimill continues by itself.`},
	{"confirmations of one tenant fail, and a request for another one has failed now", func(s *admin.Snapshot) {
		wait(s, subscriber.WaitTenant, 2, 2, admin.Wait{What: "t", Name: "Hof Nord", Since: ago(48 * time.Second), Count: 1, Reason: "503"},
			admin.Wait{What: "u", Name: "Hof Süd", Since: ago(time.Second), Count: 1, Reason: "503"})
	}, true, map[admin.ProblemKind]int{admin.ProblemConfirmations: 1},
		`Confirmations for Hof Nord have failed for 48 s: 503. 2 messages are stored and stay with the gateway as well; nothing is lost. Ask the gateway's operator; agrimill continues by itself.`},
	{"confirmations of two tenants fail", func(s *admin.Snapshot) {
		wait(s, subscriber.WaitTenant, 2, 2, admin.Wait{What: "t", Name: "Hof Nord", Since: ago(48 * time.Second), Count: 1, Reason: "503"},
			admin.Wait{What: "u", Name: "Hof Süd", Since: ago(20 * time.Second), Count: 1, Reason: "503"})
	}, true, map[admin.ProblemKind]int{admin.ProblemConfirmations: 1},
		`Confirmations for 2 tenants, first of all Hof Nord, have failed for 48 s: 503. 2 messages are stored and stay with the gateway as well; nothing is lost. Ask the gateway's operator; agrimill continues by itself.`},
	{"the gateway rejects confirmations", func(s *admin.Snapshot) { s.Subscriber.Rejected = 45 }, true, nil,
		`All is right: messages are received, stored and confirmed, but for 45 messages since the start whose confirmations were rejected for good: see the log.`},
	{"messages are in a poison queue that nobody can count", func(s *admin.Snapshot) {
		s.Poison.Depth, s.Routes[1].Poisoned, s.Subscriber.Quarantined = nil, 1, 1
	}, true, nil,
		`All is right: messages are received, stored and confirmed, but for 2 messages since the start in the poison queue of the sink "farm".`},
	{"one endpoint stands still", func(s *admin.Snapshot) {
		wait(s, subscriber.WaitKey, 3, 1, admin.Wait{What: "e", Name: `the endpoint "barn"`, Since: ago(48 * time.Second), Count: 3})
		s.Routes[0].LastError, s.Routes[0].LastErrorAt = "message too large", ago(time.Second)
	}, true, map[admin.ProblemKind]int{admin.ProblemEndpoint: 1},
		`The endpoint "barn" has had no message finished for 48 s: message too large. 3 messages of it wait, others pass; nothing is lost. Repair what the error of its route names; agrimill continues by itself.`},
	{"a key that is no endpoint waits", func(s *admin.Snapshot) {
		wait(s, subscriber.WaitKey, 3, 1, admin.Wait{What: "field 7", Since: ago(48 * time.Second), Count: 3})
	}, true, map[admin.ProblemKind]int{admin.ProblemEndpoint: 1},
		`The key field 7 has had no message finished for 48 s. 3 messages of it wait, others pass; nothing is lost. Repair what the error of its route names; agrimill continues by itself.`},
	{"several endpoints stand still", func(s *admin.Snapshot) {
		wait(s, subscriber.WaitKey, 7, 3, admin.Wait{What: "e", Name: `the endpoint "barn"`, Since: ago(48 * time.Second), Count: 3})
	}, true, map[admin.ProblemKind]int{admin.ProblemEndpoint: 1},
		`The endpoint "barn" has had no message finished for 48 s. 3 messages of it wait, and those of 2 other endpoints; others pass; nothing is lost. Repair what the error of its route names; agrimill continues by itself.`},
	{"a route is slow for a tenant", func(s *admin.Snapshot) {
		wait(s, subscriber.WaitSubscription, 500, 1, admin.Wait{What: "x", Name: `the route "maps" for the tenant of "barn" (t)`, Since: ago(time.Minute), Count: 500})
	}, true, map[admin.ProblemKind]int{admin.ProblemSlow: 1},
		`The route "maps" for the tenant of "barn" (t) has been too slow for 1 min 0 s. It has 500 messages, and further ones stay with the gateway; nothing is lost. Find out why its sink is slow; agrimill continues by itself.`},
	{"a payload host is down", func(s *admin.Snapshot) {
		wait(s, subscriber.WaitKey, 4, 1, admin.Wait{What: "e", Name: `the endpoint "barn"`, Since: ago(time.Minute), Count: 4}) // for those payloads
		wait(s, subscriber.WaitPayload, 3, 1, admin.Wait{What: "files.example", Since: ago(time.Minute), Count: 3, Reason: "connection refused"})
	}, true, map[admin.ProblemKind]int{admin.ProblemPayloads: 1},
		`Downloads of payloads from files.example have failed for 1 min 0 s: connection refused. 3 messages wait; nothing is lost. Repair the way to that host; agrimill continues by itself.`},
	{"the claim check does not store payloads of one host, and another host is down", func(s *admin.Snapshot) {
		wait(s, subscriber.WaitPayload, 5, 2, admin.Wait{What: "files.example", Since: ago(hour), Count: 3, Reason: "claim check: put: no space left on device"},
			admin.Wait{What: "more.example", Since: ago(time.Minute), Count: 2, Reason: "connection refused"})
		fail(s, "claim check", "claim check: put: no space left on device", hour)
	}, false, map[admin.ProblemKind]int{admin.ProblemClaimCheck: 1, admin.ProblemPayloads: 1},
		`The store of the claim check has been failing for 1 h 0 min: claim check: put: no space left on device. Messages with large payloads wait; nothing is lost. Free space on that disk; agrimill continues by itself. There is 1 more problem.`},
	{"all routes wait for the dedup store", func(s *admin.Snapshot) {
		const reason = "boltstore: the file is open in another process: /var/lib/agrimill/dedup.db"
		for i := range 2 {
			failRoute(s, i, router.StateOutage, "dedup store: reserve: "+reason, time.Minute)
			s.Routes[i].Open = 2
		}
		s.Subscriber.Unconfirmed = 2
		fail(s, "dedup", reason, time.Minute)
	}, false, map[admin.ProblemKind]int{admin.ProblemDedup: 1},
		`The dedup store bbolt /var/lib/agrimill/dedup.db has been failing for 1 min 0 s: boltstore: the file is open in another process: /var/lib/agrimill/dedup.db. The routes "maps" and "orders" wait with 2 messages; nothing is lost. Stop that process, or give each a file of its own; agrimill continues by itself.`},
	{"a topic is refused", func(s *admin.Snapshot) {
		s.Routes[0].Refused = []router.RefusedTopic{{Topic: "farm.maps", Since: ago(time.Minute)}}
		s.Routes[0].LastError = "nats: permissions violation"
	}, true, map[admin.ProblemKind]int{admin.ProblemTopic: 1},
		`The topic "farm.maps" of the route "maps" has been refused by the sink for 1 min 0 s: nats: permissions violation. Messages for it wait, others pass; nothing is lost. Correct the credentials or the permissions; agrimill continues by itself.`},
	{"a broker lost messages", func(s *admin.Snapshot) { s.Sinks[0].Lost = new(uint64(46)) }, true, map[admin.ProblemKind]int{admin.ProblemLost: 1},
		`46 messages that the sink "farm" had acknowledged have been missing for 0 s. Messages of routes with durable: synced are stored again; the rest is nowhere else. See which (agrimill trace lost), have their senders send them again, and restart agrimill.`},
	{"a message is set aside", func(s *admin.Snapshot) { s.Subscriber.SetAsideNow = 1 }, true, map[admin.ProblemKind]int{admin.ProblemSetAside: 1},
		`1 message has been set aside for 0 s. Nothing takes it as it is, and it stays with the gateway; nothing is lost. See agrimill trace and the log for why; if a limit is too low, raise it: that of the sink, or gateway.max_payload_size.`},
	{"a message is old, and nobody knows why", func(s *admin.Snapshot) {
		s.Subscriber.OldestUnconfirmed, s.Subscriber.Unconfirmed = ago(hour), 3
	}, true, map[admin.ProblemKind]int{admin.ProblemOld: 1},
		`The oldest message has been unconfirmed for 1 h 0 min. 3 of 1,004 messages are unconfirmed and stay with the gateway; nothing is lost. See agrimill trace, and which route has it in flight.`},
	{"the poison queue cannot be read", func(s *admin.Snapshot) {
		s.Poison.Depth, s.Poison.Unreadable, s.Poison.DepthNote = nil, true, "the queue cannot be read: stream not found"
	}, true, map[admin.ProblemKind]int{admin.ProblemQueue: 1},
		`The poison queue in the sink "farm" has not been readable for 0 s: stream not found. Nobody knows how many messages are in it, and what would be poisoned may wait; nothing is lost. Repair that sink, or correct poison.topic; agrimill continues by itself.`},
	{"the poison queue cannot be read, because its sink is down", func(s *admin.Snapshot) {
		s.Poison.Depth, s.Poison.Unreadable, s.Poison.DepthNote = nil, true, "the queue cannot be read: connection refused"
		fail(s, "sink farm", "connection refused", 48*time.Second)
	}, false, map[admin.ProblemKind]int{admin.ProblemSink: 1},
		`The sink "farm" (nats nats.example:4222) has been down for 48 s: connection refused. The routes "maps" and "orders" wait; nothing is lost. Repair it; agrimill continues by itself.`},
	{"messages are poisoned", func(s *admin.Snapshot) { depth := int64(3); s.Poison.Depth, s.Poison.Oldest = &depth, ago(hour) }, true, map[admin.ProblemKind]int{admin.ProblemPoisoned: 1},
		`3 messages have been in the poison queue for 1 h 0 min. They were confirmed and are nowhere else; no route has delivered them. See why (agrimill poison list), repair that, and run agrimill poison replay or drop.`},
	{"the quarantine does not take an event", func(s *admin.Snapshot) { s.Subscriber.QuarantineWaiting = 2 }, true, map[admin.ProblemKind]int{admin.ProblemQuarantine: 1},
		`2 unreadable events have been waiting for the quarantine for 0 s. They are not confirmed; nothing is lost. Repair the sink of the poison queue; agrimill continues by itself.`},
	{"a reload is refused", func(s *admin.Snapshot) {
		s.Config.Error, s.Config.FailedAt = "agrimill.yaml:7: unknown key; did you mean name?", ago(5*time.Minute)
	}, true, map[admin.ProblemKind]int{admin.ProblemReload: 1},
		`The configuration file has been refused for 5 min 0 s: agrimill.yaml:7: unknown key; did you mean name? The configuration of 2026-06-01 11:00:00 UTC stays in use. Correct it (agrimill validate) and reload.`},
	{"configured endpoints are refused", func(s *admin.Snapshot) {
		s.Unprovided = admin.Unprovided{Count: 3, Tenant: `the tenant of "barn" (t)`, ExternalID: "urn:farm", Since: ago(time.Second), Error: "status 400: unknown type"}
	}, true, map[admin.ProblemKind]int{admin.ProblemUnprovided: 1},
		`The endpoint "urn:farm" for the tenant of "barn" (t) and 2 more have not been made or changed for 1 s: status 400: unknown type. It stays as it was; if it is new, nothing can be sent to it. Correct endpoints in the configuration, and reload.`},
	{"a configured endpoint is tried again", func(s *admin.Snapshot) {
		s.Unprovided = admin.Unprovided{Count: 1, Tenant: "the tenant t", ExternalID: "urn:farm", Since: ago(time.Minute), Error: "status 503", Retried: true}
	}, true, map[admin.ProblemKind]int{admin.ProblemUnprovided: 1},
		`The endpoint "urn:farm" for the tenant t has not been made or changed for 1 min 0 s: status 503. It stays as it was; if it is new, nothing can be sent to it. Repair what the reason names; agrimill continues by itself.`},
	{"configured endpoints were deleted", func(s *admin.Snapshot) {
		s.Unprovided = admin.Unprovided{Count: 2, Tenant: "the tenant t", ExternalID: "urn:farm", Since: ago(time.Minute), Error: "somebody else deleted the endpoint", Deleted: true}
	}, true, map[admin.ProblemKind]int{admin.ProblemUnprovided: 1},
		`The endpoint "urn:farm" for the tenant t and 1 more have been missing for 1 min 0 s: somebody else deleted the endpoint. It receives nothing any longer. Set recreate: true to make it again, or remove it from the configuration, and reload.`},
	{"the journal is on a full disk", func(s *admin.Snapshot) {
		s.Checks = append(s.Checks, admin.Check{Name: "journal", OK: true, Message: "journal: /j.db: write /j.db: no space left on device"})
	}, true, map[admin.ProblemKind]int{admin.ProblemJournal: 1},
		`The file of the journal has not been written for 0 s: /j.db: write /j.db: no space left on device. The history of messages is known until agrimill exits; messages move, and nothing is lost. Free space on that disk; agrimill continues by itself.`},
	{"the journal is damaged", func(s *admin.Snapshot) {
		s.Checks = append(s.Checks, admin.Check{Name: "journal", OK: true, Message: "journal: /j.db: the file is damaged", Final: true})
	}, true, map[admin.ProblemKind]int{admin.ProblemJournal: 1},
		`The file of the journal has not been written for 0 s: /j.db: the file is damaged. The history of messages is known until agrimill exits; messages move, and nothing is lost. Restart agrimill, which moves the file away and begins a new one.`},
	{"a certificate ends soon", func(s *admin.Snapshot) {
		s.Certificates = []admin.Certificate{{Setting: "admin.tls.cert_file", File: "admin.pem", NotAfter: noon.AddDate(0, 0, 13)}}
	}, true, map[admin.ProblemKind]int{admin.ProblemCertificate: 1},
		`The certificate admin.tls.cert_file (admin.pem) has needed a renewal for 1 d 0 h: it ends 2026-06-14 12:00 UTC. Until then nothing changes; after that, connections fail and messages wait; nothing is lost. Renew the file; agrimill takes it over by itself.`},
	{"a certificate is good for long", func(s *admin.Snapshot) {
		s.Certificates = []admin.Certificate{{Setting: "admin.tls.cert_file", File: "admin.pem", NotAfter: noon.AddDate(0, 0, 15)}}
	}, true, nil, `All is right: messages are received, stored and confirmed.`},
	{"several at once", func(s *admin.Snapshot) {
		s.Config.Error, s.Gateway.RateLimited = "unknown key", true
		fail(s, "sink farm", "connection refused", 48*time.Second)
	}, false, map[admin.ProblemKind]int{admin.ProblemSink: 1, admin.ProblemReload: 1, admin.ProblemRateLimit: 1},
		`The sink "farm" (nats nats.example:4222) has been down for 48 s: connection refused. The routes "maps" and "orders" wait; nothing is lost. Repair it; agrimill continues by itself. There are 2 more problems.`},
}

// The error of an outage is not why a message was set aside.
func TestSetAsideInAnOutage(t *testing.T) {
	s := wellSnapshot()
	s.Subscriber.SetAsideNow = 2
	failRoute(&s, 0, router.StateOutage, "connection refused", time.Minute)
	if p := new(admin.Steady).Judge(s).Problems[1]; p.Kind != admin.ProblemSetAside || p.Reason != "" || !strings.Contains(p.Text, "Nothing takes them as they are, and they stay with the gateway") {
		t.Errorf("the second problem is %+v", p)
	}
}

// TestVerdict is the truth table of the verdict: each situation has its sentence, readiness, exit status and metric.
func TestVerdict(t *testing.T) {
	runbook := strings.ToLower(string(testkit.Must(os.ReadFile("../../../../docs/runbook.md"))(t)))
	for _, test := range situations {
		t.Run(test.name, func(t *testing.T) {
			s := wellSnapshot()
			test.change(&s)
			v := new(admin.Steady).Judge(s)
			if v.Sentence != test.says {
				t.Errorf("got  %s\nwant %s", v.Sentence, test.says)
			}
			if v.Ready != test.ready {
				t.Errorf("ready is %t", v.Ready)
			}
			exit := map[bool]int{false: 5, true: 0}[test.ready]
			if test.ready && len(test.counts) > 0 {
				exit = 4
			}
			if got := v.ExitStatus(); got != exit {
				t.Errorf("the exit status is %d, want %d", got, exit)
			}
			counts := v.Counting()
			for _, kind := range admin.ProblemKinds() {
				if counts[kind] != test.counts[kind] {
					t.Errorf("got %d problems %q, want %d", counts[kind], kind, test.counts[kind])
				}
			}
			for _, p := range v.Problems {
				if p.Effect == "" || p.Action == "" || p.Runbook == "" || p.Text == "" {
					t.Errorf("a problem says too little: %+v", p)
				}
				if !strings.Contains(runbook, "# "+strings.ToLower(p.Runbook)+"\n") {
					t.Errorf("the runbook has no section %s", p.Runbook)
				}
			}
		})
	}
}

// What flaps counts once it has lasted, and until it has been away for as long.
func TestSteady(t *testing.T) {
	j := admin.Steady{Grace: 15 * time.Second}
	at := func(second int, bad bool) admin.Verdict {
		s := wellSnapshot()
		s.Time = noon.Add(time.Duration(second) * time.Second)
		if bad {
			fail(&s, "sink farm", "connection refused", 0)
			s.Checks[4].Since = s.Time // a check knows only the latest time
		}
		v := j.Judge(s)
		if passed := !slices.ContainsFunc(v.Apply(s.Checks), func(c admin.Check) bool { return !c.OK }); passed != v.Ready {
			t.Errorf("after %d s: ready is %v, and all checks pass: %v", second, v.Ready, passed)
		}
		return v
	}
	at(0, false)
	var changes []int
	ready := true
	for second := 1; second <= 400; second++ {
		bad := second >= 20 && second < 300 && second%10 < 6 // 6 s down, 4 s up
		v := at(second, bad)
		if v.Ready != ready {
			changes = append(changes, second)
			ready = v.Ready
		}
		if second == 21 && (len(v.Problems) != 1 || v.Problems[0].Stage != admin.StageRecent || !strings.Contains(v.Sentence, "This counts once it has lasted for 15 s")) {
			t.Errorf("got %s", v.Sentence)
		}
	}
	if len(changes) != 0 {
		t.Errorf("what never lasts for 15 s changes the readiness at %v", changes)
	}
	for second := 401; second <= 600; second++ {
		bad := second >= 410 && second < 430 || second > 430 && second < 500 && second%10 < 6
		v := at(second, bad)
		if v.Ready != ready {
			changes = append(changes, second)
			ready = v.Ready
		}
		if second == 430 && (v.Problems[0].Stage != admin.StageRecovering || !strings.HasPrefix(v.Sentence, `The sink "farm" (nats nats.example:4222) recovered 1 s ago, after 19 s.`)) {
			t.Errorf("got %s", v.Sentence)
		}
	}
	if len(changes) != 2 || changes[0] != 425 || changes[1] != 510 {
		t.Errorf("the readiness changes at %v", changes)
	}
}

// What still lasts comes before what recovers, and that before what may be over soon.
func TestSteadyWorstFirst(t *testing.T) {
	j := admin.Steady{Grace: 15 * time.Second}
	for second := range 90 {
		s := wellSnapshot()
		s.Time = noon.Add(time.Duration(second) * time.Second)
		for name, from := range map[string]int{"sink farm": 1, "dedup": 66, "route back": 21} {
			if second >= from && (name != "sink farm" || second < 60) {
				fail(&s, name, "connection refused", -time.Duration(from)*time.Second)
			}
		}
		if second > 20 {
			s.Routes[2].State = router.StateOutage
		}
		var order []admin.ProblemKind
		for _, p := range j.Judge(s).Problems {
			order = append(order, p.Kind)
		}
		want := map[int][]admin.ProblemKind{
			30: {admin.ProblemSink, admin.ProblemRoute},
			62: {admin.ProblemRoute, admin.ProblemSink},
			70: {admin.ProblemRoute, admin.ProblemSink, admin.ProblemDedup},
			85: {admin.ProblemDedup, admin.ProblemRoute},
		}[second]
		if want != nil && !slices.Equal(order, want) {
			t.Errorf("after %d s: got %q, want %q", second, order, want)
		}
	}
}

// A sink is back before the routes that waited for it have tried again. They do not become problems of their own meanwhile.
func TestSteadyAfterAnOutage(t *testing.T) {
	j := admin.Steady{Grace: 15 * time.Second}
	at := func(second int, sink, routes bool) admin.Verdict {
		s := wellSnapshot()
		s.Time = noon.Add(time.Duration(second) * time.Second)
		if sink {
			fail(&s, "sink farm", "connection refused", 0)
		}
		for i := range 2 {
			if routes {
				failRoute(&s, i, router.StateOutage, "connection refused", 0)
				s.Routes[i].Since = noon.Add(time.Second)
			}
		}
		return j.Judge(s)
	}
	at(0, false, false)
	for second := 1; second < 60; second++ {
		at(second, true, true)
	}
	for second := 60; second < 90; second++ {
		v := at(second, false, true)
		recovering := second < 74 // the sink was down until second 59
		switch {
		case recovering && (v.Ready || len(v.Problems) != 1 || v.Problems[0].Kind != admin.ProblemSink || v.Problems[0].Stage != admin.StageRecovering):
			t.Fatalf("after %d s: ready is %t, %s", second, v.Ready, v.Sentence)
		case !recovering && (v.Ready || len(v.Problems) != 2 || v.Problems[0].Kind != admin.ProblemRoute || v.Problems[0].Stage != admin.StageLasting):
			t.Fatalf("after %d s: ready is %t, %s", second, v.Ready, v.Sentence)
		}
	}
}

// Confirmations that fail are one problem: it is not over because those of another tenant fail as well.
func TestSteadyConfirmations(t *testing.T) {
	j := admin.Steady{Grace: 15 * time.Second}
	tenants := []admin.Wait{{What: "t", Name: "Hof Nord", Since: noon}, {What: "u", Name: "Hof Süd", Since: noon.Add(30 * time.Second)}}
	for second := range 90 {
		s := wellSnapshot()
		s.Time = noon.Add(time.Duration(second) * time.Second)
		n := 1 + second/45
		wait(&s, subscriber.WaitTenant, n, n, tenants[:n]...)
		v := j.Judge(s)
		if second >= 15 && (len(v.Problems) != 1 || v.Problems[0].Stage != admin.StageLasting || !v.Problems[0].Since.Equal(noon)) {
			t.Fatalf("after %d s: %s", second, v.Sentence)
		}
	}
}

// The routes of a sink that is back have recovered before the next look at them. What that look found is no problem of theirs.
func TestSteadyBeforeTheNextLook(t *testing.T) {
	j := admin.Steady{Grace: 15 * time.Second}
	for second := range 90 {
		s := wellSnapshot()
		s.Time = noon.Add(time.Duration(second) * time.Second)
		if second > 0 && second < 60 {
			fail(&s, "sink farm", "connection refused", 0)
			failRoute(&s, 0, router.StateOutage, "connection refused", 0)
		}
		if second >= 55 { // it moves messages again
			s.Routes[0].State, s.Routes[0].Since = router.StateRunning, s.Time
		}
		for _, p := range j.Judge(s).Problems {
			if p.Kind != admin.ProblemSink {
				t.Fatalf("after %d s: %s", second, p.Text)
			}
		}
	}
}

// While nobody can read the poison queue, what was in it is not over.
func TestSteadyPoisoned(t *testing.T) {
	j, depth := admin.Steady{Grace: 15 * time.Second}, int64(3)
	for second := range 60 {
		s := wellSnapshot()
		s.Time, s.Poison.Depth = noon.Add(time.Duration(second)*time.Second), &depth
		if second >= 20 && second < 50 {
			s.Poison.Depth, s.Poison.Unreadable = nil, true
			fail(&s, "sink farm", "connection refused", 0)
		}
		if v := j.Judge(s); v.Counting()[admin.ProblemPoisoned] != 1 {
			t.Fatalf("after %d s: %s", second, v.Sentence)
		}
	}
}

// A problem is as old as what waits longest now, and the same one whoever that is: while others wait, none recovers.
func TestSteadyWhoeverWaitsLongest(t *testing.T) {
	for name, test := range map[string]struct {
		change func(s *admin.Snapshot, second int)
		says   string // in the last second, 59
	}{
		"the poison queue": {func(s *admin.Snapshot, second int) {
			depth := int64(60 - second)
			s.Poison.Depth, s.Poison.Oldest = &depth, ago(hour).Add(time.Duration(second)*time.Minute)
		}, "1 message has been in the poison queue for 1 min 59 s."},
		"the oldest message": {func(s *admin.Snapshot, second int) {
			s.Subscriber.Unconfirmed, s.Subscriber.OldestUnconfirmed = 1, s.Time.Add(-hour+time.Duration(second)*30*time.Second)
		}, "The oldest message has been unconfirmed for 30 min 30 s."},
		"endpoints": {func(s *admin.Snapshot, second int) {
			wait(s, subscriber.WaitKey, 9, 3, admin.Wait{What: "e", Name: fmt.Sprintf("the endpoint %d", second), Since: s.Time.Add(-20 * time.Second), Count: 3})
		}, "The endpoint 59 has had no message finished for 20 s."},
	} {
		t.Run(name, func(t *testing.T) {
			j := admin.Steady{Grace: 15 * time.Second}
			j.Judge(wellSnapshot())
			for second := range 60 {
				s := wellSnapshot()
				s.Time = noon.Add(time.Duration(second) * time.Second)
				test.change(&s, second)
				v := j.Judge(s)
				if len(v.Problems) != 1 || v.Problems[0].Stage != admin.StageLasting || second == 59 && !strings.HasPrefix(v.Sentence, test.says) {
					t.Fatalf("after %d s: %d problems, the first is %s: %s", second, len(v.Problems), v.Problems[0].Stage, v.Sentence)
				}
			}
		})
	}
}
