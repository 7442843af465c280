package sinktest

import "testing"

// Run runs the suite as subtests of t.
func Run(t *testing.T, h Suite) {
	t.Helper()
	f := h.Features
	t.Run("OneBroker", func(t *testing.T) {
		shared := h
		b := h.New(t, Settings{})
		shared.New = func(*testing.T, Settings) Backend { return b } // each test has topics of its own
		run(t, shared, []test{
			{"StoresWhatItAcked", true, testStoresWhatItAcked},
			{"PayloadIntact", true, testPayloadIntact},
			{"Unused", true, testUnused},
			{"OrderInOneCall", true, testOrderInOneCall},
			{"Concurrent", true, testConcurrent},
			{"MessagesUntouched", true, testMessagesUntouched},
			{"MessagesNotKept", true, testMessagesNotKept},
			{"ContextEndedBefore", true, testContextEndedBefore},
			{"CopyWithOtherBytes", true, testCopyWithOtherBytes},
			{"AsyncStores", true, testAsyncStores},
			{"AsyncClose", true, testAsyncClose},
			{"Templates", true, testTemplates},
			{"CloseRepeated", true, testCloseRepeated},
			{"ClosedErrors", true, testClosedErrors},
			{"CloseWhilePublishing", true, testCloseWhilePublishing},
			{"MetadataIntact", f.Metadata, testMetadataIntact},
			{"ReservedNames", f.Metadata && len(f.ReservedNames) > 0, testReservedNames},
			{"Dedup", f.Dedup, testDedup},
			{"NilMessage", true, testNilMessage},
			{"Rejected", len(f.RejectedTopics) > 0, testRejected},
			{"AsyncDuplicate", f.AtReceipt != nil && f.Dedup, testAsyncDuplicate},
			{"Segments", !f.TopicIsValue, testSegments},
			{"SegmentsAsTopics", !f.TopicIsValue, testSegmentsAsTopics},
		})
	})
	run(t, h, []test{
		{"TooLarge", f.MaxMessageSize, testTooLarge},
		{"SegmentsAreValues", f.TopicIsValue, testSegmentsAreValues},
		{"AsyncOutage", f.Outage, faulty(testAsyncOutage)},
		{"AsyncWhileHanging", f.Hang, faulty(testAsyncWhileHanging)},
		{"Outage", f.Outage, faulty(testOutage)},
		{"OutageWhilePublishing", f.Outage, faulty(testOutageWhilePublishing)},
		{"ContextEndsWhileHanging", f.Hang, faulty(testContextEndsWhileHanging)},
		{"CloseWhileHanging", f.Hang, faulty(testCloseWhileHanging)},
		{"HangIsAnOutage", f.Hang, faulty(testHangIsAnOutage)},
	})
}

// test is a test of the suite, for implementations that have what it needs.
type test struct {
	name string
	has  bool
	run  func(*testing.T, Suite)
}

func run(t *testing.T, h Suite, tests []test) {
	t.Helper()
	for _, c := range tests {
		if c.has {
			t.Run(c.name, func(t *testing.T) { c.run(t, h) })
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
