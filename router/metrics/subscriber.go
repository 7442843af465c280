package metrics

import (
	"slices"
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

func subscriberSeries(s subscriber.Stats) []series {
	return slices.Concat(leaseSeries(s), eventSeries(s), confirmationSeries(s), streamSeries(s))
}

func leaseSeries(s subscriber.Stats) []series {
	return []series{
		gauge("agrimill_subscriber_lease_holder", truth(s.Lease.Role == subscriber.LeaseHolder),
			"Whether it has the lease: 1 or 0. 0 without a lease."),
		gauge("agrimill_subscriber_lease_standby", truth(s.Lease.Role == subscriber.LeaseStandby),
			"Whether it waits for the lease: 1 or 0. 0 without a lease."),
		gauge("agrimill_subscriber_lease_epoch", s.Lease.Epoch,
			"The epoch of the present term with the lease, or of the latest one."),
		counter("agrimill_subscriber_lease_changes_total", s.Lease.Changes,
			"Changes of the role, between none, standby and holder."),
		counter("agrimill_subscriber_lease_lost_total", s.Lease.Lost,
			"Terms that ended because the lease was not renewed in time, or another process had it."),
		counter("agrimill_subscriber_lease_given_up_total", s.Lease.GivenUp,
			"Terms that ended because the event stream could not be opened, or the gateway did not answer."),
	}
}

func eventSeries(s subscriber.Stats) []series {
	return []series{
		counter("agrimill_subscriber_overtaken_total", s.Overtaken,
			"Messages that failed while later ones of their key were on their way, which may be stored before them."),
		counter("agrimill_subscriber_events_received_total", s.Received,
			"Events that were decoded, including redelivered ones."),
		counter("agrimill_subscriber_messages_delivered_total", s.Delivered,
			"Messages taken from output channels, including redelivered ones."),
		counter("agrimill_subscriber_messages_nacked_total", s.Nacked,
			"Messages that were nacked."),
		counter("agrimill_subscriber_events_joined_total", s.Joined,
			"Redelivered events that were joined to their first copy."),
		counter("agrimill_subscriber_events_untaken_total", s.Untaken,
			"Events that no subscription took. They stay unconfirmed."),
		counter("agrimill_subscriber_messages_in_files_total", s.InFiles,
			"Messages that were confirmed with a file that they are parts of."),
		counter("agrimill_subscriber_messages_unmatched_total", s.Unmatched,
			"Messages that the filters of all routes refused."),
		counter("agrimill_subscriber_events_abandoned_total", s.Abandoned,
			"Events that were left with the service: there was no room, their subscription ended, or their payload was unavailable."),
		counter("agrimill_subscriber_events_malformed_total", s.Malformed,
			"Events that could not be decoded."),
		counter("agrimill_subscriber_event_fields_unreadable_total", s.Unreadable,
			"Optional fields, and endpoints in lists, that could not be read and were left out of their events."),
		counter("agrimill_subscriber_events_too_large_total", s.TooLarge,
			"Events that were skipped because of their size."),
		counter("agrimill_subscriber_events_quarantined_total", s.Quarantined,
			"Events that were stored in the quarantine."),
		counter("agrimill_subscriber_quarantine_failures_total", s.QuarantineFailures,
			"Failed attempts to put an event into the quarantine."),
		gauge("agrimill_subscriber_quarantine_waiting", s.QuarantineWaiting,
			"Events that are waiting for the quarantine."),
		counter("agrimill_subscriber_payloads_expired_total", s.Expired,
			"Payloads whose address had expired."),
		counter("agrimill_subscriber_messages_held_total", s.Held,
			"Messages that were held back for their file."),
		gauge("agrimill_subscriber_set_aside_messages", s.SetAsideNow,
			"Messages that are set aside now, and not confirmed since."),
		counter("agrimill_subscriber_messages_set_aside_total", s.SetAside,
			"How often a message was set aside: not even the poison queue accepts it, or it cannot be delivered."),
		counter("agrimill_subscriber_received_bytes_total", s.ReceivedBytes,
			"Payload bytes that arrived, embedded in events or downloaded, including redeliveries."),
		counter("agrimill_subscriber_delivered_bytes_total", s.DeliveredBytes,
			"Payload bytes in the messages taken from output channels, including redelivered ones."),
		gauge("agrimill_subscriber_held_messages", s.HeldNow,
			"Messages that are currently held back for their file."),
		gauge("agrimill_subscriber_held_confirmations", s.HeldConfirmations,
			"Confirmations that are held back because the message may be a chunk whose file is not acked yet."),
		gauge("agrimill_subscriber_unsynced_confirmations", s.UnsyncedConfirmations,
			"Confirmations that wait until what was stored survives a power cut."),
		counter("agrimill_subscriber_possibly_lost_total", s.PossiblyLost,
			"Messages that were stored, or are to be, once more, because the sink was restarted before it had synced them."),
		counter("agrimill_subscriber_confirmations_released_total", s.ReleasedConfirmations,
			"Confirmations that were held back, and sent early because there were too many."),
		gauge("agrimill_subscriber_parked_messages", s.Parked,
			"Messages that were nacked and wait to be redelivered."),
		gauge("agrimill_subscriber_stalled_messages", s.Stalled,
			"Messages that wait because their payload cannot be downloaded, or because handlers have had them for a second in a full window."),
		gauge("agrimill_subscriber_in_flight_events", s.InFlight,
			"Events that arrived and are not yet acked by every subscription."),
		gauge("agrimill_subscriber_in_flight_bytes", s.InFlightBytes,
			"Payload bytes of the events in flight."),
	}
}

func confirmationSeries(s subscriber.Stats) []series {
	return []series{
		counter("agrimill_subscriber_confirmations_total", s.Confirmed,
			"Confirmations that the service accepted."),
		counter("agrimill_subscriber_confirmations_rejected_total", s.Rejected,
			"Confirmations that the service will never accept. They were dropped."),
		counter("agrimill_subscriber_confirm_requests_total", s.ConfirmRequests,
			"Requests that carried confirmations."),
		counter("agrimill_subscriber_confirm_request_failures_total", s.ConfirmFailures,
			"Requests with confirmations that failed and are retried."),
		gauge("agrimill_subscriber_pending_confirmations", s.PendingConfirmations,
			"Confirmations that are waiting or in flight."),
		gauge("agrimill_subscriber_oldest_pending_confirmation_age_seconds", age(s.OldestPending),
			"How long the oldest pending confirmation has been waiting since its ack; 0 if none is."),
		gauge("agrimill_subscriber_oldest_in_flight_age_seconds", age(s.OldestInFlight),
			"How long ago the oldest event in flight arrived; 0 if none is in flight."),
		gauge("agrimill_subscriber_oldest_unconfirmed_age_seconds", age(s.OldestUnconfirmed),
			"Age of the oldest unconfirmed event: since its arrival while in flight or held for its file, or since its ack while its confirmation is pending or held; 0 if there is none."),
	}
}

func streamSeries(s subscriber.Stats) []series {
	return []series{
		gauge("agrimill_subscriber_stream_connected", truth(s.Stream.Connected),
			"1 while the event stream is open, else 0."),
		gauge("agrimill_subscriber_stream_state_since_timestamp_seconds", unix(s.Stream.Since),
			"Unix time at which the event stream was last opened or lost; 0 before the first attempt."),
		counter("agrimill_subscriber_stream_connects_total", s.Stream.Connects,
			"Successful connections of the event stream."),
		counter("agrimill_subscriber_stream_reconnects_total", max(0, s.Stream.Connects-1),
			"Successful connections of the event stream after the first one."),
	}
}

// Describe implements prometheus.Collector.
func (c *SubscriberCollector) Describe(ch chan<- *prometheus.Desc) {
	describe(subscriberSeries(subscriber.Stats{}), ch)
	ch <- subscriberWaiting.desc
	ch <- subscriberLongestWait.desc
}

// Collect implements prometheus.Collector.
func (c *SubscriberCollector) Collect(ch chan<- prometheus.Metric) {
	stats := c.source.Stats()
	collect(subscriberSeries(stats), ch)
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
