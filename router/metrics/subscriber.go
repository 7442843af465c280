package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/subscriber"
)

// StatsSource is the part of *subscriber.Subscriber that a [SubscriberCollector] uses.
// Stats is called once per scrape, from any goroutine.
type StatsSource interface {
	Stats() subscriber.Stats
}

// SubscriberCollector exports the statistics of one subscriber. It is safe for
// concurrent use, and may outlive the subscriber: its last values stay.
type SubscriberCollector struct {
	source StatsSource
}

// NewSubscriberCollector returns a collector for source, which must not be nil.
func NewSubscriberCollector(source StatsSource) *SubscriberCollector {
	return &SubscriberCollector{source: source}
}

var subscriberSeries = []series[subscriber.Stats]{
	gauge("agrimill_subscriber_lease_holder",
		"Whether it has the lease: 1 or 0. 0 without a lease.",
		func(s subscriber.Stats) float64 { return truth(s.Lease.Role == subscriber.LeaseHolder) }),
	gauge("agrimill_subscriber_lease_standby",
		"Whether it waits for the lease: 1 or 0. 0 without a lease.",
		func(s subscriber.Stats) float64 { return truth(s.Lease.Role == subscriber.LeaseStandby) }),
	gauge("agrimill_subscriber_lease_epoch",
		"The epoch of the present term with the lease, or of the latest one.",
		func(s subscriber.Stats) float64 { return float64(s.Lease.Epoch) }),
	counter("agrimill_subscriber_lease_changes_total",
		"Changes of the role, between none, standby and holder.",
		func(s subscriber.Stats) float64 { return float64(s.Lease.Changes) }),
	counter("agrimill_subscriber_lease_lost_total",
		"Terms that ended because the lease was not renewed in time, or another process had it.",
		func(s subscriber.Stats) float64 { return float64(s.Lease.Lost) }),
	counter("agrimill_subscriber_lease_given_up_total",
		"Terms that ended because the event stream could not be opened, or the gateway did not answer.",
		func(s subscriber.Stats) float64 { return float64(s.Lease.GivenUp) }),
	counter("agrimill_subscriber_overtaken_total",
		"Messages that failed while later ones of their key were on their way, which may be stored before them.",
		func(s subscriber.Stats) float64 { return float64(s.Overtaken) }),
	counter("agrimill_subscriber_events_received_total",
		"Events that were decoded, including redelivered ones.",
		func(s subscriber.Stats) float64 { return float64(s.Received) }),
	counter("agrimill_subscriber_messages_delivered_total",
		"Messages taken from output channels, including redelivered ones.",
		func(s subscriber.Stats) float64 { return float64(s.Delivered) }),
	counter("agrimill_subscriber_messages_nacked_total",
		"Messages that were nacked.",
		func(s subscriber.Stats) float64 { return float64(s.Nacked) }),
	counter("agrimill_subscriber_events_joined_total",
		"Redelivered events that were joined to their first copy.",
		func(s subscriber.Stats) float64 { return float64(s.Joined) }),
	counter("agrimill_subscriber_events_untaken_total",
		"Events that no subscription took. They stay unconfirmed.",
		func(s subscriber.Stats) float64 { return float64(s.Untaken) }),
	counter("agrimill_subscriber_messages_in_files_total",
		"Messages that were confirmed with a file that they are parts of.",
		func(s subscriber.Stats) float64 { return float64(s.InFiles) }),
	counter("agrimill_subscriber_messages_unmatched_total",
		"Messages that the filters of all routes refused.",
		func(s subscriber.Stats) float64 { return float64(s.Unmatched) }),
	counter("agrimill_subscriber_events_abandoned_total",
		"Events that were left with the service: there was no room, their subscription ended, or their payload was unavailable.",
		func(s subscriber.Stats) float64 { return float64(s.Abandoned) }),
	counter("agrimill_subscriber_events_malformed_total",
		"Events that could not be decoded.",
		func(s subscriber.Stats) float64 { return float64(s.Malformed) }),
	counter("agrimill_subscriber_event_fields_unreadable_total",
		"Optional fields, and endpoints in lists, that could not be read and were left out of their events.",
		func(s subscriber.Stats) float64 { return float64(s.Unreadable) }),
	counter("agrimill_subscriber_events_too_large_total",
		"Events that were skipped because of their size.",
		func(s subscriber.Stats) float64 { return float64(s.TooLarge) }),
	counter("agrimill_subscriber_events_quarantined_total",
		"Events that were stored in the quarantine.",
		func(s subscriber.Stats) float64 { return float64(s.Quarantined) }),
	counter("agrimill_subscriber_quarantine_failures_total",
		"Failed attempts to put an event into the quarantine.",
		func(s subscriber.Stats) float64 { return float64(s.QuarantineFailures) }),
	gauge("agrimill_subscriber_quarantine_waiting",
		"Events that are waiting for the quarantine.",
		func(s subscriber.Stats) float64 { return float64(s.QuarantineWaiting) }),
	counter("agrimill_subscriber_payloads_expired_total",
		"Payloads whose address had expired.",
		func(s subscriber.Stats) float64 { return float64(s.Expired) }),
	counter("agrimill_subscriber_messages_held_total",
		"Messages that were held back for their file.",
		func(s subscriber.Stats) float64 { return float64(s.Held) }),
	gauge("agrimill_subscriber_set_aside_messages",
		"Messages that are set aside now, and not confirmed since.",
		func(s subscriber.Stats) float64 { return float64(s.SetAsideNow) }),
	counter("agrimill_subscriber_messages_set_aside_total",
		"How often a message was set aside: not even the poison queue accepts it, or it cannot be delivered.",
		func(s subscriber.Stats) float64 { return float64(s.SetAside) }),
	counter("agrimill_subscriber_received_bytes_total",
		"Payload bytes that arrived, embedded in events or downloaded, including redeliveries.",
		func(s subscriber.Stats) float64 { return float64(s.ReceivedBytes) }),
	counter("agrimill_subscriber_delivered_bytes_total",
		"Payload bytes in the messages taken from output channels, including redelivered ones.",
		func(s subscriber.Stats) float64 { return float64(s.DeliveredBytes) }),
	gauge("agrimill_subscriber_held_messages",
		"Messages that are currently held back for their file.",
		func(s subscriber.Stats) float64 { return float64(s.HeldNow) }),
	gauge("agrimill_subscriber_held_confirmations",
		"Confirmations that are held back because the message may be a chunk whose file is not acked yet.",
		func(s subscriber.Stats) float64 { return float64(s.HeldConfirmations) }),
	gauge("agrimill_subscriber_unsynced_confirmations",
		"Confirmations that wait until what was stored survives a power cut.",
		func(s subscriber.Stats) float64 { return float64(s.UnsyncedConfirmations) }),
	counter("agrimill_subscriber_possibly_lost_total",
		"Messages that were stored, or are to be, once more, because the sink was restarted before it had synced them.",
		func(s subscriber.Stats) float64 { return float64(s.PossiblyLost) }),
	counter("agrimill_subscriber_confirmations_released_total",
		"Confirmations that were held back, and sent early because there were too many.",
		func(s subscriber.Stats) float64 { return float64(s.ReleasedConfirmations) }),
	gauge("agrimill_subscriber_parked_messages",
		"Messages that were nacked and wait to be redelivered.",
		func(s subscriber.Stats) float64 { return float64(s.Parked) }),
	gauge("agrimill_subscriber_stalled_messages",
		"Messages that wait because their payload cannot be downloaded, or because handlers have had them for a second in a full window.",
		func(s subscriber.Stats) float64 { return float64(s.Stalled) }),
	gauge("agrimill_subscriber_in_flight_events",
		"Events that arrived and are not yet acked by every subscription.",
		func(s subscriber.Stats) float64 { return float64(s.InFlight) }),
	gauge("agrimill_subscriber_in_flight_bytes",
		"Payload bytes of the events in flight.",
		func(s subscriber.Stats) float64 { return float64(s.InFlightBytes) }),

	counter("agrimill_subscriber_confirmations_total",
		"Confirmations that the service accepted.",
		func(s subscriber.Stats) float64 { return float64(s.Confirmed) }),
	counter("agrimill_subscriber_confirmations_rejected_total",
		"Confirmations that the service will never accept. They were dropped.",
		func(s subscriber.Stats) float64 { return float64(s.Rejected) }),
	counter("agrimill_subscriber_confirm_requests_total",
		"Requests that carried confirmations.",
		func(s subscriber.Stats) float64 { return float64(s.ConfirmRequests) }),
	counter("agrimill_subscriber_confirm_request_failures_total",
		"Requests with confirmations that failed and are retried.",
		func(s subscriber.Stats) float64 { return float64(s.ConfirmFailures) }),
	gauge("agrimill_subscriber_pending_confirmations",
		"Confirmations that are waiting or in flight.",
		func(s subscriber.Stats) float64 { return float64(s.PendingConfirmations) }),
	gauge("agrimill_subscriber_oldest_pending_confirmation_age_seconds",
		"How long the oldest pending confirmation has been waiting since its ack; 0 if none is.",
		func(s subscriber.Stats) float64 { return age(s.OldestPending) }),
	gauge("agrimill_subscriber_oldest_in_flight_age_seconds",
		"How long ago the oldest event in flight arrived; 0 if none is in flight.",
		func(s subscriber.Stats) float64 { return age(s.OldestInFlight) }),
	gauge("agrimill_subscriber_oldest_unconfirmed_age_seconds",
		"Age of the oldest unconfirmed event: since its arrival while in flight or held for its file, or since its ack while its confirmation is pending or held; 0 if there is none.",
		func(s subscriber.Stats) float64 { return age(s.OldestUnconfirmed) }),

	gauge("agrimill_subscriber_stream_connected",
		"1 while the event stream is open, else 0.",
		func(s subscriber.Stats) float64 { return truth(s.Stream.Connected) }),
	gauge("agrimill_subscriber_stream_state_since_timestamp_seconds",
		"Unix time at which the event stream was last opened or lost; 0 before the first attempt.",
		func(s subscriber.Stats) float64 { return unix(s.Stream.Since) }),
	counter("agrimill_subscriber_stream_connects_total",
		"Successful connections of the event stream.",
		func(s subscriber.Stats) float64 { return float64(s.Stream.Connects) }),
	counter("agrimill_subscriber_stream_reconnects_total",
		"Successful connections of the event stream after the first one.",
		func(s subscriber.Stats) float64 { return float64(max(0, s.Stream.Connects-1)) }),
}

// Describe implements prometheus.Collector.
func (c *SubscriberCollector) Describe(ch chan<- *prometheus.Desc) {
	describe(subscriberSeries, ch)
	ch <- subscriberWaiting.desc
	ch <- subscriberLongestWait.desc
}

// Collect implements prometheus.Collector.
func (c *SubscriberCollector) Collect(ch chan<- prometheus.Metric) {
	stats := c.source.Stats()
	collect(subscriberSeries, stats, ch)
	waits := make(map[subscriber.WaitKind]subscriber.Waits)
	for _, w := range stats.Waits {
		waits[w.Kind] = w
	}
	for _, kind := range subscriber.WaitKinds() {
		longest := 0.0
		if w := waits[kind]; len(w.Longest) > 0 {
			longest = age(w.Longest[0].Since)
		}
		ch <- subscriberWaiting.with(float64(waits[kind].Count), string(kind))
		ch <- subscriberLongestWait.with(longest, string(kind))
	}
}

var (
	subscriberWaiting = gaugeFamily("agrimill_subscriber_waiting",
		"What waits now, by kind: keys of which nothing is finished, subscriptions that are slow, nacked messages, payload hosts and tenants that fail, messages and confirmations that wait for a file.", "kind")
	subscriberLongestWait = gaugeFamily("agrimill_subscriber_longest_wait_seconds",
		"How long the longest of them has waited; of those that wait for a file, the next one.", "kind")
)

// age returns the seconds since t, 0 for the zero time.
func age(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(0, time.Since(t).Seconds())
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// unix returns the Unix time in seconds, 0 for the zero time.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
