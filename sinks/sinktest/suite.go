package sinktest

import (
	"testing"
)

// Run runs the suite as subtests of t.
func Run(t *testing.T, h Suite) {
	t.Helper()
	always := []struct {
		name string
		test func(*testing.T, Suite)
	}{
		{"StoresWhatItAcked", testStoresWhatItAcked},
		{"PayloadIntact", testPayloadIntact},
		{"Describe", testDescribe},
		{"Healthy", testHealthy},
		{"OrderSequential", testOrderSequential},
		{"OrderInOneCall", testOrderInOneCall},
		{"Concurrent", testConcurrent},
		{"EmptyCall", testEmptyCall},
		{"MessagesUntouched", testMessagesUntouched},
		{"MessagesNotKept", testMessagesNotKept},
		{"ContextEndedBefore", testContextEndedBefore},
		{"CopyWithOtherBytes", testCopyWithOtherBytes},
		{"AsyncStores", testAsyncStores},
		{"AsyncAndPublish", testAsyncAndPublish},
		{"AsyncErrors", testAsyncErrors},
		{"AsyncClose", testAsyncClose},
		{"Templates", testTemplates},
		{"CloseRepeated", testCloseRepeated},
		{"ClosedErrors", testClosedErrors},
		{"CloseWhilePublishing", testCloseWhilePublishing},
	}
	for _, c := range always {
		t.Run(c.name, func(t *testing.T) { c.test(t, h) })
	}
	f := h.Features
	featured := []struct {
		name string
		has  bool
		test func(*testing.T, Suite)
	}{
		{"MetadataIntact", f.Metadata, testMetadataIntact},
		{"ReservedNames", f.Metadata && len(f.ReservedNames) > 0, testReservedNames},
		{"Dedup", f.Dedup, testDedup},
		{"TooLarge", f.MaxMessageSize, testTooLarge},
		{"TooLargeByMetadata", f.MaxMessageSize && f.Metadata, testTooLargeByMetadata},
		{"Rejected", len(f.RejectedTopics) > 0, testRejected},
		{"AsyncReceipts", f.AtReceipt != nil, testAsyncReceipts},
		{"AsyncDuplicate", f.AtReceipt != nil && f.Dedup, testAsyncDuplicate},
		{"AsyncTooLarge", f.MaxMessageSize, testAsyncTooLarge},
		{"AsyncOutage", f.Outage, faulty(testAsyncOutage)},
		{"AsyncWhileHanging", f.Hang, faulty(testAsyncWhileHanging)},
		{"Outage", f.Outage, faulty(testOutage)},
		{"OutageWhilePublishing", f.Outage, faulty(testOutageWhilePublishing)},
		{"ContextEndsWhileHanging", f.Hang, faulty(testContextEndsWhileHanging)},
		{"CloseWhileHanging", f.Hang, faulty(testCloseWhileHanging)},
		{"HangIsAnOutage", f.Hang, faulty(testHangIsAnOutage)},
		{"SegmentsInjective", !f.TopicIsValue, testSegmentsInjective},
		{"SegmentsAsTopics", !f.TopicIsValue, testSegmentsAsTopics},
		{"SegmentsAreValues", f.TopicIsValue, testSegmentsAreValues},
		{"SegmentsComeBack", f.UnescapeTopicSegment != nil, testSegmentsComeBack},
	}
	for _, c := range featured {
		if c.has {
			t.Run(c.name, func(t *testing.T) { c.test(t, h) })
		}
	}
}

// faulty is a test that breaks the broker.
func faulty(test func(*testing.T, Suite)) func(*testing.T, Suite) {
	return func(t *testing.T, h Suite) {
		t.Helper()
		open := h.New
		h.New = func(t *testing.T, settings Settings) Backend {
			t.Helper()
			settings.Faults = true
			return open(t, settings)
		}
		test(t, h)
	}
}
