package config

import (
	"regexp"
	"strings"
)

// former has what became of keys that are gone, by the ends of their paths: what they are called now, or what holds without them.
var former = map[string]string{
	"retry.min_backoff":      "it is now initial_backoff",
	"retry.initial_interval": "it is now initial_backoff",
	"retry.max_interval":     "it is now max_backoff",

	"gateway.stream_connect_timeout": fixed("30s"),
	"gateway.max_response_size":      fixed("64MiB"),
	"gateway.request_timeout":        fixed("30s, and longer for a large body"),
	"gateway.token_timeout":          fixed("30s"),
	"gateway.token_expiry_margin":    fixed("30s"),
	"gateway.rate_limit":             "remove it: the limit is found by what the service answers",
	"gateway.payload_idle_timeout":   fixed("30s"),
	"gateway.max_payload_redirects":  fixed("5"),
	"gateway.ping_interval":          fixed("10s"),
	"gateway.user_agent":             fixed("agrimill"),
	"gateway.retry.max_retry_after":  fixed("5m"),

	"subscriber.whole_file_hold":  fixed("2s, and at most file_hold"),
	"subscriber.max_held":         fixed("10000"),
	"subscriber.nack":             fixed("100ms, doubling up to 30s"),
	"subscriber.reconnect":        fixed("250ms, doubling up to 30s"),
	"subscriber.confirm":          "remove it: how confirmations are sent is found by how fast they are answered",
	"subscriber.recent_confirmed": fixed("65536"),
	"subscriber.recent_for":       fixed("10m"),
	"subscriber.max_inline":       "use gateway.max_payload_size",
	"subscriber.download_retry":   fixed("250ms, doubling up to 4s"),
	"subscriber.refresh_every":    fixed("5m"),

	"nats.max_pending":          fixed("4096"),
	"kafka.max_pending":         fixed("1024"),
	"kafka.max_pending_bytes":   fixed("64MiB"),
	"kafka.version":             fixed("2.8; older brokers are recognized"),
	"from.nats.ack_wait":        fixed("30s"),
	"from.nats.driver":          "remove it: agrimill reads with a consumer of its own",
	"transform.efdi.part_bytes": fixed("976KiB"),

	"poison.timeout":           fixed("30s, and a second more per MiB"),
	"dedup.never_chunk_below":  "use subscriber.chunk_size, of which it is half",
	"dedup.store_timeout":      fixed("5s"),
	"dedup.memory":             "write its max_entries as dedup.max_entries",
	"dedup.bbolt.max_entries":  "it is now dedup.max_entries",
	"dedup.bbolt.open_timeout": fixed("5s"),
	"nats_kv.timeout":          fixed("5s, and at most half of ha.ttl for the lease"),
	"nats_kv.session_ttl":      fixed("10s, and at most half of ha.ttl"),
	"devices.memory":           "remove it: they are in memory without nats_kv and kafka",
	"devices.kafka.timeout":    fixed("30s"),
	"devices.kafka.max_memory": fixed("64MiB"),
	"claim_check.prefix":       "write it into the address: as a directory of files, or as ?prefix=payloads/ of a bucket",
	"journal.max_entries":      "use max_bytes",
}

// fixed is said of a key whose value nobody needs to choose.
func fixed(value string) string { return "remove it: it is always " + value }

var index = regexp.MustCompile(`\[[^\]]*\]`)

// formerKey returns what became of a key at a path; empty if there was none.
func formerKey(path string) string {
	path = index.ReplaceAllString(path, "")
	for {
		if text, ok := former[path]; ok {
			return text
		}
		_, rest, more := strings.Cut(path, ".")
		if !more {
			return ""
		}
		path = rest
	}
}
