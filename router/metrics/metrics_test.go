package metrics_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/metrics"
	"github.com/agrimill/agrimill/subscriber"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type statsFunc func() subscriber.Stats

func (f statsFunc) Stats() subscriber.Stats { return f() }

type healthFunc func() []router.RouteHealth

func (f healthFunc) Health() []router.RouteHealth { return f() }

// compare checks that c exposes exactly want, or those of want with the given names.
func compare(t *testing.T, c prometheus.Collector, want string, names ...string) {
	t.Helper()
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

// lint checks that names and help texts follow the conventions of Prometheus.
func lint(t *testing.T, c prometheus.Collector) {
	t.Helper()
	problems := testkit.Must(testutil.CollectAndLint(c))(t)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestSubscriberCollector(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stats := subscriber.Stats{
			Overtaken: 4,
			Lease:     subscriber.LeaseState{Role: subscriber.LeaseHolder, Epoch: 17, Changes: 5, Lost: 2, GivenUp: 3},
			Stream:    subscriber.StreamState{Connected: true, Since: time.Unix(1000, 250e6), Connects: 3, LastError: errors.New("not a label")},
			Received:  101, Delivered: 102, Nacked: 103, Joined: 104, Untaken: 105, Abandoned: 106,
			Unmatched: 129,
			Malformed: 107, Unreadable: 132, TooLarge: 108, Expired: 109, Held: 110, InFiles: 131,
			Confirmed: 111, Rejected: 112, ConfirmRequests: 113, ConfirmFailures: 114,
			PendingConfirmations: 115, OldestPending: time.Now().Add(-90 * time.Second), OldestUnconfirmed: time.Now().Add(-95 * time.Second),
			InFlight: 116, InFlightBytes: 117, HeldNow: 118, HeldConfirmations: 125, ReleasedConfirmations: 126, UnsyncedConfirmations: 133, PossiblyLost: 134, Parked: 127, Stalled: 128, Waits: []subscriber.Waits{{Kind: subscriber.WaitKey, Count: 3, Longest: []subscriber.Wait{{What: "e", Since: time.Now().Add(-20 * time.Second)}}}},
			Quarantined: 122, QuarantineFailures: 123, QuarantineWaiting: 124,
			SetAside: 119, SetAsideNow: 131, ReceivedBytes: 120, DeliveredBytes: 121, OldestInFlight: time.Now().Add(-80 * time.Second),
		}
		c := metrics.NewSubscriberCollector(statsFunc(func() subscriber.Stats { return stats }))
		compare(t, c, subscriberExposition)
		lint(t, c)

		stats = subscriber.Stats{}
		compare(t, c, `
# HELP agrimill_subscriber_oldest_pending_confirmation_age_seconds How long the oldest pending confirmation has been waiting since its ack; 0 if none is.
# TYPE agrimill_subscriber_oldest_pending_confirmation_age_seconds gauge
agrimill_subscriber_oldest_pending_confirmation_age_seconds 0
# HELP agrimill_subscriber_stream_connected 1 while the event stream is open, else 0.
# TYPE agrimill_subscriber_stream_connected gauge
agrimill_subscriber_stream_connected 0
# HELP agrimill_subscriber_stream_state_since_timestamp_seconds Unix time at which the event stream was last opened or lost; 0 before the first attempt.
# TYPE agrimill_subscriber_stream_state_since_timestamp_seconds gauge
agrimill_subscriber_stream_state_since_timestamp_seconds 0
`, "agrimill_subscriber_oldest_pending_confirmation_age_seconds", "agrimill_subscriber_stream_connected",
			"agrimill_subscriber_stream_state_since_timestamp_seconds")
	})
}

const subscriberExposition = `
# HELP agrimill_subscriber_confirm_request_failures_total Requests with confirmations that failed and are retried.
# TYPE agrimill_subscriber_confirm_request_failures_total counter
agrimill_subscriber_confirm_request_failures_total 114
# HELP agrimill_subscriber_confirm_requests_total Requests that carried confirmations.
# TYPE agrimill_subscriber_confirm_requests_total counter
agrimill_subscriber_confirm_requests_total 113
# HELP agrimill_subscriber_confirmations_rejected_total Confirmations that the service will never accept. They were dropped.
# TYPE agrimill_subscriber_confirmations_rejected_total counter
agrimill_subscriber_confirmations_rejected_total 112
# HELP agrimill_subscriber_confirmations_released_total Confirmations that were held back, and sent early because there were too many.
# TYPE agrimill_subscriber_confirmations_released_total counter
agrimill_subscriber_confirmations_released_total 126
# HELP agrimill_subscriber_possibly_lost_total Messages that were stored, or are to be, once more, because the sink was restarted before it had synced them.
# TYPE agrimill_subscriber_possibly_lost_total counter
agrimill_subscriber_possibly_lost_total 134
# HELP agrimill_subscriber_unsynced_confirmations Confirmations that wait until what was stored survives a power cut.
# TYPE agrimill_subscriber_unsynced_confirmations gauge
agrimill_subscriber_unsynced_confirmations 133
# HELP agrimill_subscriber_confirmations_total Confirmations that the service accepted.
# TYPE agrimill_subscriber_confirmations_total counter
agrimill_subscriber_confirmations_total 111
# HELP agrimill_subscriber_delivered_bytes_total Payload bytes in the messages taken from output channels, including redelivered ones.
# TYPE agrimill_subscriber_delivered_bytes_total counter
agrimill_subscriber_delivered_bytes_total 121
# HELP agrimill_subscriber_event_fields_unreadable_total Optional fields, and endpoints in lists, that could not be read and were left out of their events.
# TYPE agrimill_subscriber_event_fields_unreadable_total counter
agrimill_subscriber_event_fields_unreadable_total 132
# HELP agrimill_subscriber_events_abandoned_total Events that were left with the service: there was no room, their subscription ended, or their payload was unavailable.
# TYPE agrimill_subscriber_events_abandoned_total counter
agrimill_subscriber_events_abandoned_total 106
# HELP agrimill_subscriber_events_joined_total Redelivered events that were joined to their first copy.
# TYPE agrimill_subscriber_events_joined_total counter
agrimill_subscriber_events_joined_total 104
# HELP agrimill_subscriber_events_malformed_total Events that could not be decoded.
# TYPE agrimill_subscriber_events_malformed_total counter
agrimill_subscriber_events_malformed_total 107
# HELP agrimill_subscriber_events_quarantined_total Events that were stored in the quarantine.
# TYPE agrimill_subscriber_events_quarantined_total counter
agrimill_subscriber_events_quarantined_total 122
# HELP agrimill_subscriber_events_received_total Events that were decoded, including redelivered ones.
# TYPE agrimill_subscriber_events_received_total counter
agrimill_subscriber_events_received_total 101
# HELP agrimill_subscriber_events_too_large_total Events that were skipped because of their size.
# TYPE agrimill_subscriber_events_too_large_total counter
agrimill_subscriber_events_too_large_total 108
# HELP agrimill_subscriber_events_untaken_total Events that no subscription took. They stay unconfirmed.
# TYPE agrimill_subscriber_events_untaken_total counter
agrimill_subscriber_events_untaken_total 105
# HELP agrimill_subscriber_held_confirmations Confirmations that are held back because the message may be a chunk whose file is not acked yet.
# TYPE agrimill_subscriber_held_confirmations gauge
agrimill_subscriber_held_confirmations 125
# HELP agrimill_subscriber_held_messages Messages that are currently held back for their file.
# TYPE agrimill_subscriber_held_messages gauge
agrimill_subscriber_held_messages 118
# HELP agrimill_subscriber_in_flight_bytes Payload bytes of the events in flight.
# TYPE agrimill_subscriber_in_flight_bytes gauge
agrimill_subscriber_in_flight_bytes 117
# HELP agrimill_subscriber_in_flight_events Events that arrived and are not yet acked by every subscription.
# TYPE agrimill_subscriber_in_flight_events gauge
agrimill_subscriber_in_flight_events 116
# HELP agrimill_subscriber_lease_changes_total Changes of the role, between none, standby and holder.
# TYPE agrimill_subscriber_lease_changes_total counter
agrimill_subscriber_lease_changes_total 5
# HELP agrimill_subscriber_lease_epoch The epoch of the present term with the lease, or of the latest one.
# TYPE agrimill_subscriber_lease_epoch gauge
agrimill_subscriber_lease_epoch 17
# HELP agrimill_subscriber_lease_holder Whether it has the lease: 1 or 0. 0 without a lease.
# TYPE agrimill_subscriber_lease_holder gauge
agrimill_subscriber_lease_holder 1
# HELP agrimill_subscriber_lease_given_up_total Terms that ended because the event stream could not be opened, or the gateway did not answer.
# TYPE agrimill_subscriber_lease_given_up_total counter
agrimill_subscriber_lease_given_up_total 3
# HELP agrimill_subscriber_lease_lost_total Terms that ended because the lease was not renewed in time, or another process had it.
# TYPE agrimill_subscriber_lease_lost_total counter
agrimill_subscriber_lease_lost_total 2
# HELP agrimill_subscriber_lease_standby Whether it waits for the lease: 1 or 0. 0 without a lease.
# TYPE agrimill_subscriber_lease_standby gauge
agrimill_subscriber_lease_standby 0
# HELP agrimill_subscriber_longest_wait_seconds How long the longest of them has waited; of those that wait for a file, the next one.
# TYPE agrimill_subscriber_longest_wait_seconds gauge
agrimill_subscriber_longest_wait_seconds{kind="file"} 0
agrimill_subscriber_longest_wait_seconds{kind="file confirmation"} 0
agrimill_subscriber_longest_wait_seconds{kind="key"} 20
agrimill_subscriber_longest_wait_seconds{kind="nack"} 0
agrimill_subscriber_longest_wait_seconds{kind="payload"} 0
agrimill_subscriber_longest_wait_seconds{kind="subscription"} 0
agrimill_subscriber_longest_wait_seconds{kind="tenant"} 0
# HELP agrimill_subscriber_messages_delivered_total Messages taken from output channels, including redelivered ones.
# TYPE agrimill_subscriber_messages_delivered_total counter
agrimill_subscriber_messages_delivered_total 102
# HELP agrimill_subscriber_messages_held_total Messages that were held back for their file.
# TYPE agrimill_subscriber_messages_held_total counter
agrimill_subscriber_messages_held_total 110
# HELP agrimill_subscriber_messages_in_files_total Messages that were confirmed with a file that they are parts of.
# TYPE agrimill_subscriber_messages_in_files_total counter
agrimill_subscriber_messages_in_files_total 131
# HELP agrimill_subscriber_messages_nacked_total Messages that were nacked.
# TYPE agrimill_subscriber_messages_nacked_total counter
agrimill_subscriber_messages_nacked_total 103
# HELP agrimill_subscriber_set_aside_messages Messages that are set aside now, and not confirmed since.
# TYPE agrimill_subscriber_set_aside_messages gauge
agrimill_subscriber_set_aside_messages 131
# HELP agrimill_subscriber_messages_set_aside_total How often a message was set aside: not even the poison queue accepts it, or it cannot be delivered.
# TYPE agrimill_subscriber_messages_set_aside_total counter
agrimill_subscriber_messages_set_aside_total 119
# HELP agrimill_subscriber_messages_unmatched_total Messages that the filters of all routes refused.
# TYPE agrimill_subscriber_messages_unmatched_total counter
agrimill_subscriber_messages_unmatched_total 129
# HELP agrimill_subscriber_oldest_in_flight_age_seconds How long ago the oldest event in flight arrived; 0 if none is in flight.
# TYPE agrimill_subscriber_oldest_in_flight_age_seconds gauge
agrimill_subscriber_oldest_in_flight_age_seconds 80
# HELP agrimill_subscriber_oldest_pending_confirmation_age_seconds How long the oldest pending confirmation has been waiting since its ack; 0 if none is.
# TYPE agrimill_subscriber_oldest_pending_confirmation_age_seconds gauge
agrimill_subscriber_oldest_pending_confirmation_age_seconds 90
# HELP agrimill_subscriber_oldest_unconfirmed_age_seconds Age of the oldest unconfirmed event: since its arrival while in flight or held for its file, or since its ack while its confirmation is pending or held; 0 if there is none.
# TYPE agrimill_subscriber_oldest_unconfirmed_age_seconds gauge
agrimill_subscriber_oldest_unconfirmed_age_seconds 95
# HELP agrimill_subscriber_overtaken_total Messages that failed while later ones of their key were on their way, which may be stored before them.
# TYPE agrimill_subscriber_overtaken_total counter
agrimill_subscriber_overtaken_total 4
# HELP agrimill_subscriber_parked_messages Messages that were nacked and wait to be redelivered.
# TYPE agrimill_subscriber_parked_messages gauge
agrimill_subscriber_parked_messages 127
# HELP agrimill_subscriber_payloads_expired_total Payloads whose address had expired.
# TYPE agrimill_subscriber_payloads_expired_total counter
agrimill_subscriber_payloads_expired_total 109
# HELP agrimill_subscriber_pending_confirmations Confirmations that are waiting or in flight.
# TYPE agrimill_subscriber_pending_confirmations gauge
agrimill_subscriber_pending_confirmations 115
# HELP agrimill_subscriber_quarantine_failures_total Failed attempts to put an event into the quarantine.
# TYPE agrimill_subscriber_quarantine_failures_total counter
agrimill_subscriber_quarantine_failures_total 123
# HELP agrimill_subscriber_quarantine_waiting Events that are waiting for the quarantine.
# TYPE agrimill_subscriber_quarantine_waiting gauge
agrimill_subscriber_quarantine_waiting 124
# HELP agrimill_subscriber_received_bytes_total Payload bytes that arrived, embedded in events or downloaded, including redeliveries.
# TYPE agrimill_subscriber_received_bytes_total counter
agrimill_subscriber_received_bytes_total 120
# HELP agrimill_subscriber_stalled_messages Messages that wait because their payload cannot be downloaded, or because handlers have had them for a second in a full window.
# TYPE agrimill_subscriber_stalled_messages gauge
agrimill_subscriber_stalled_messages 128
# HELP agrimill_subscriber_stream_connected 1 while the event stream is open, else 0.
# TYPE agrimill_subscriber_stream_connected gauge
agrimill_subscriber_stream_connected 1
# HELP agrimill_subscriber_stream_connects_total Successful connections of the event stream.
# TYPE agrimill_subscriber_stream_connects_total counter
agrimill_subscriber_stream_connects_total 3
# HELP agrimill_subscriber_stream_reconnects_total Successful connections of the event stream after the first one.
# TYPE agrimill_subscriber_stream_reconnects_total counter
agrimill_subscriber_stream_reconnects_total 2
# HELP agrimill_subscriber_stream_state_since_timestamp_seconds Unix time at which the event stream was last opened or lost; 0 before the first attempt.
# TYPE agrimill_subscriber_stream_state_since_timestamp_seconds gauge
agrimill_subscriber_stream_state_since_timestamp_seconds 1000.25
# HELP agrimill_subscriber_waiting What waits now, by kind: keys of which nothing is finished, subscriptions that are slow, nacked messages, payload hosts and tenants that fail, messages and confirmations that wait for a file.
# TYPE agrimill_subscriber_waiting gauge
agrimill_subscriber_waiting{kind="file"} 0
agrimill_subscriber_waiting{kind="file confirmation"} 0
agrimill_subscriber_waiting{kind="key"} 3
agrimill_subscriber_waiting{kind="nack"} 0
agrimill_subscriber_waiting{kind="payload"} 0
agrimill_subscriber_waiting{kind="subscription"} 0
agrimill_subscriber_waiting{kind="tenant"} 0
`

// clientState is a client of the gateway to a collector.
type clientState struct {
	limit          gateway.RateLimitState
	intermediaries gateway.IntermediaryState
}

func (s *clientState) RateLimit() gateway.RateLimitState         { return s.limit }
func (s *clientState) Intermediaries() gateway.IntermediaryState { return s.intermediaries }

func TestClientCollector(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		state := &clientState{
			limit: gateway.RateLimitState{
				Limited: true, Rate: 2.5, PausedUntil: time.Now().Add(30 * time.Second), Rejected: 7, LastRejected: time.Unix(1000, 0),
			},
			intermediaries: gateway.IntermediaryState{Answers: 9, Now: []gateway.IntermediaryAnswer{
				{Operation: "confirm messages", Since: time.Now().Add(-time.Minute)}, {Operation: "send message", Since: time.Now()},
			}},
		}
		c := metrics.NewClientCollector(state)
		lint(t, c)
		exposition := `
# HELP agrimill_gateway_intermediary_age_seconds How long something in between has been answering an operation, at most; 0 if the service answers all of them.
# TYPE agrimill_gateway_intermediary_age_seconds gauge
agrimill_gateway_intermediary_age_seconds %d
# HELP agrimill_gateway_intermediary_answers_total Responses that came from something in between, such as an ingress or a proxy, instead of the service.
# TYPE agrimill_gateway_intermediary_answers_total counter
agrimill_gateway_intermediary_answers_total %d
# HELP agrimill_gateway_intermediary_operations Operations that something in between currently answers instead of the service.
# TYPE agrimill_gateway_intermediary_operations gauge
agrimill_gateway_intermediary_operations %d
# HELP agrimill_gateway_last_rate_limited_timestamp_seconds Unix time of the last response with status 429; 0 if never.
# TYPE agrimill_gateway_last_rate_limited_timestamp_seconds gauge
agrimill_gateway_last_rate_limited_timestamp_seconds %d
# HELP agrimill_gateway_rate_limit_pause_seconds How much longer the client pauses all requests; 0 if it does not.
# TYPE agrimill_gateway_rate_limit_pause_seconds gauge
agrimill_gateway_rate_limit_pause_seconds %d
# HELP agrimill_gateway_rate_limit_requests_per_second The request rate that the client keeps to while it is limited; 0 while it is not.
# TYPE agrimill_gateway_rate_limit_requests_per_second gauge
agrimill_gateway_rate_limit_requests_per_second %v
# HELP agrimill_gateway_rate_limited 1 from the first response with status 429 until the limit is lifted, else 0.
# TYPE agrimill_gateway_rate_limited gauge
agrimill_gateway_rate_limited %d
# HELP agrimill_gateway_rate_limited_responses_total Responses with status 429.
# TYPE agrimill_gateway_rate_limited_responses_total counter
agrimill_gateway_rate_limited_responses_total %d
`
		compare(t, c, fmt.Sprintf(exposition, 60, 9, 2, 1000, 30, 2.5, 1, 7))
		time.Sleep(time.Minute) // the pause is over, and nobody has asked the limiter since
		compare(t, c, fmt.Sprintf(exposition, 120, 9, 2, 1000, 0, 2.5, 1, 7))
		*state = clientState{}
		compare(t, c, fmt.Sprintf(exposition, 0, 0, 0, 0, 0, 0, 0, 0))
	})
}

func TestRouterCollector(t *testing.T) {
	t.Parallel()
	c := metrics.NewRouterCollector(healthFunc(func() []router.RouteHealth {
		return []router.RouteHealth{{
			Name: "farm data", State: router.StateOutage, Since: time.Unix(2000, 0), InFlight: 7, Waiting: 6, Refused: make([]router.RefusedTopic, 5),
			Delivered: 1, Filtered: 2, Duplicates: 3, Poisoned: 4, Returned: 5, MaybeRepeated: 7,
			RetriesByClass: router.RetryCounts{Handler: 2, Outage: 3, Shutdown: 4},
			LastSuccess:    time.Unix(1999, 0), LastError: "not a label",
		}}
	}))
	compare(t, c, `
# HELP agrimill_route_in_flight_messages Messages that the route has taken but not finished.
# TYPE agrimill_route_in_flight_messages gauge
agrimill_route_in_flight_messages{route="farm data"} 7
# HELP agrimill_route_last_success_timestamp_seconds Unix time at which the sink last accepted a message; 0 if never.
# TYPE agrimill_route_last_success_timestamp_seconds gauge
agrimill_route_last_success_timestamp_seconds{route="farm data"} 1999
# HELP agrimill_route_messages_total Messages of the route by outcome.
# TYPE agrimill_route_messages_total counter
agrimill_route_messages_total{outcome="delivered",route="farm data"} 1
agrimill_route_messages_total{outcome="duplicate",route="farm data"} 3
agrimill_route_messages_total{outcome="filtered",route="farm data"} 2
agrimill_route_messages_total{outcome="poisoned",route="farm data"} 4
agrimill_route_messages_total{outcome="returned",route="farm data"} 5
# HELP agrimill_route_refused_topics Topics that the sink refuses while it takes others.
# TYPE agrimill_route_refused_topics gauge
agrimill_route_refused_topics{route="farm data"} 5
# HELP agrimill_route_retries_total Failed attempts that were retried, by error class.
# TYPE agrimill_route_retries_total counter
agrimill_route_retries_total{class="handler",route="farm data"} 2
agrimill_route_retries_total{class="outage",route="farm data"} 3
agrimill_route_retries_total{class="shutdown",route="farm data"} 4
# HELP agrimill_route_state 1 for the current state of the route, 0 for the others.
# TYPE agrimill_route_state gauge
agrimill_route_state{route="farm data",state="ended"} 0
agrimill_route_state{route="farm data",state="failed"} 0
agrimill_route_state{route="farm data",state="failing"} 0
agrimill_route_state{route="farm data",state="outage"} 1
agrimill_route_state{route="farm data",state="running"} 0
agrimill_route_state{route="farm data",state="starting"} 0
agrimill_route_state{route="farm data",state="stopped"} 0
# HELP agrimill_route_state_since_timestamp_seconds Unix time at which the route entered its state.
# TYPE agrimill_route_state_since_timestamp_seconds gauge
agrimill_route_state_since_timestamp_seconds{route="farm data"} 2000
# HELP agrimill_route_maybe_repeated_messages_total Messages handled of which a sender's repetition could not be told.
# TYPE agrimill_route_maybe_repeated_messages_total counter
agrimill_route_maybe_repeated_messages_total{route="farm data"} 7
# HELP agrimill_route_waiting_messages Messages in flight that are waiting for a retry.
# TYPE agrimill_route_waiting_messages gauge
agrimill_route_waiting_messages{route="farm data"} 6
`)
	lint(t, c)
}

func TestObserver(t *testing.T) {
	t.Parallel()
	var handedOn int
	o := metrics.NewObserver(router.ObserverFunc(func(router.Event) { handedOn++ }))
	failure := errors.New("not a label")
	events := []router.Event{
		{Kind: router.EventDelivered},
		{Kind: router.EventFiltered},
		{Kind: router.EventDuplicate},
		{Kind: router.EventRetry, Class: router.ClassHandler, Err: failure},
		{Kind: router.EventRetry, Class: router.ClassOutage, Err: failure},
		{Kind: router.EventRetry, Class: router.ClassOutage, Err: failure},
		{Kind: router.EventPoisoned, Class: router.ClassPermanent, Err: failure},
		{Kind: router.EventReturned, Class: router.ClassShutdown, Err: failure},
		{Kind: router.EventOutageBegan, Class: router.ClassOutage, Err: failure},
		{Kind: router.EventOutageEnded, Delay: 90 * time.Second},
		{Kind: router.EventPoisonFailed, Class: router.ClassOutage, Err: failure},
		{Kind: router.EventDedupFailed, Class: router.ClassOutage, Err: failure},
	}
	for _, e := range events {
		e.Route = "farm data"
		o.Observe(e)
	}
	compare(t, o, `
# HELP agrimill_route_events_total Events of the route's messages other than success, by error class.
# TYPE agrimill_route_events_total counter
agrimill_route_events_total{class="handler",event="retry",route="farm data"} 1
agrimill_route_events_total{class="none",event="outage_ended",route="farm data"} 1
agrimill_route_events_total{class="outage",event="dedup_failed",route="farm data"} 1
agrimill_route_events_total{class="outage",event="outage_began",route="farm data"} 1
agrimill_route_events_total{class="outage",event="poison_failed",route="farm data"} 1
agrimill_route_events_total{class="outage",event="retry",route="farm data"} 2
agrimill_route_events_total{class="permanent",event="poisoned",route="farm data"} 1
agrimill_route_events_total{class="shutdown",event="returned",route="farm data"} 1
# HELP agrimill_route_outage_seconds_total Duration of past outages.
# TYPE agrimill_route_outage_seconds_total counter
agrimill_route_outage_seconds_total{route="farm data"} 90
`)
	lint(t, o)
	if handedOn != len(events) {
		t.Errorf("%d of %d events handed on", handedOn, len(events))
	}
	metrics.NewObserver(nil).Observe(events[0]) // nobody to hand it on to
}

// TestObserverCostsNothingOnSuccess holds what the documentation says.
func TestObserverCostsNothingOnSuccess(t *testing.T) {
	o := metrics.NewObserver(nil)
	e := router.Event{Route: "farm data", Kind: router.EventDelivered}
	if n := testing.AllocsPerRun(100, func() { o.Observe(e) }); n != 0 {
		t.Errorf("%v allocations per delivered message", n)
	}
}

// TestTogether checks that all collectors fit into one registry, and two sets of
// them under different labels.
func TestTogether(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	for _, name := range []string{"one", "two"} {
		labelled := prometheus.WrapRegistererWith(prometheus.Labels{"gateway": name}, registry)
		labelled.MustRegister(
			metrics.NewSubscriberCollector(statsFunc(func() subscriber.Stats { return subscriber.Stats{} })),
			metrics.NewRouterCollector(healthFunc(func() []router.RouteHealth { return []router.RouteHealth{{Name: "a"}, {Name: "b"}} })),
			metrics.NewObserver(nil),
			metrics.NewClientCollector(&clientState{}),
			metrics.NewSinks(),
		)
	}
	testkit.Must(registry.Gather())(t)
}
