package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// sameness is a kind of sameness: a row of docs/identity.md, where it is decided, and the tests.
type sameness struct {
	what, who, by, lasts, untold string
	code                         string   // package folder and the function that decides, methods without receiver
	tests                        []string // in any package
}

// identities is the table of docs/identity.md.
var identities = []sameness{
	{
		"delivery", "the subscriber", "receiving endpoint and message IDs",
		"while it is open, and `subscriber.Config.RecentFor` (10 minutes) after its confirmation", "the router is asked",
		"subscriber.newID", []string{"TestRedeliveryIsJoinedToTheOpenMessage", "TestRedeliveryAfterConfirmationIsConfirmedAgain", "TestJetStreamPrograms", "TestKafkaPrograms"},
	}, {
		"UUID of a received message", "the subscriber", "receiving endpoint and message IDs",
		"for good: whether or when its chunks came makes no difference",
		"a file without messages has a new one, any other event without IDs is [quarantined](poison-queue.md#events-that-cannot-be-decoded)",
		"subscriber.messageUUID", []string{"TestUUIDNamesTheDelivery", "TestSmallFileThatComesAlone"},
	}, {
		"parts of a file", "the subscriber", "the message IDs that the file lists",
		"`subscriber.Config.FileHold`", "what no file claims is a message",
		"subscriber/internal/core.claim", []string{"TestHoldIsBoundedAndLosesNothing"},
	}, {
		"redelivery", "the router, `router.Keys.Delivery`", "route, event type, receiving endpoint, message IDs",
		"`router.DedupSettings.TTL` (24 hours), in a store that [survives](#which-store)",
		"without message IDs the content key decides; without an endpoint it is handled",
		"router.DefaultKeys", []string{"TestDefaultKeys", "TestRandomPrograms", "TestDedupFailedMessageIsNoDuplicate", "TestChunksAndCopiesForTwoEndpointsAreKept"},
	}, {
		"delivery from a broker", "the source, and the router: it is the delivery key",
		"route, and its place: stream and sequence; cluster, topic, partition and offset; the time of storing, which tells servers of NATS and recreated streams and topics apart",
		"the same", "without a place, as a message of the gateway, and by `gateway.KeyDedupID` (`KeyReceivedDedupID`)",
		"router.defaultKeys", []string{"TestDeliveriesAreNamed", "TestDeliveriesOfTwoClusters", "TestDeliveriesOfTwoServers", "TestDeliveriesOfABroker", "TestMadeOfADeliveryOfABroker", "TestWhatARouteMadeOfOneMessage"},
	}, {
		"a sender's repetition", "the router, `router.Keys.Content`",
		"route, event type, endpoints, recipients, context ID, type, filename, teamset, digest of the payload",
		"the same", "there is no content key, see below: it is handled again",
		"router.NewKeyFunc", []string{"TestSendersRepetitionIsDroppedAndAcked", "TestEqualChunksAreKept", "TestRandomPrograms", "TestNoContentKey", "TestReloadKeepsWhatDiffers"},
	}, {
		"a message to the gateway", "the program", "route, context ID or UUID, tenant, sender, recipients, type, filename, teamset, payload",
		"the same", "without context ID and UUID it is sent again",
		"cmd/agrimill/internal/pipeline.keys", []string{"TestReloadsUnderLoad", "TestOnePayloadSentAsTwo"},
	}, {
		"what a route has made", "the sink, by `gateway.KeyDedupID`",
		"delivery key, number of the replay, topic, payload, metadata that the handler set (but no trace context), ordinal among equals",
		"NATS: `nats.Config.DedupWindow` (10 minutes); a bucket: as long as the object; Kafka: never",
		"without a delivery key it has no name, and is stored again",
		"router.name", []string{"TestNamesOfWhatIsMade", "TestWhatWasMadeIsKeptUntilItIsStored", "TestSeveralMessagesWithOneMap", "TestConformance"},
	}, {
		"record of the poison queue", "its sink, by `gateway.KeyDedupID`", "route, delivery key, how often it was poisoned",
		"the same", "without a delivery key it has no name, and is stored again",
		"router.envelope", []string{"TestNamesOfRecords", "TestPoisonedAgainAfterItWasDropped"},
	}, {
		"replay of a record", "the router", "route and delivery key; without one, the record",
		"`router.DedupSettings.TTL`", "it is replayed",
		"router.recordKey", []string{"TestReplayIsNoOldAttempt", "TestReplayAfterARepairedTransform", "TestEqualRecordsAreBothReplayed", "TestEqualRecordsWithoutIDsAreReplayedAsSeveral"},
	}, {
		"event that cannot be decoded", "the quarantine's sink", "digest of the event",
		"as for what a route has made", "it is stored again",
		"subscriber.message", []string{"TestQuarantineIsNotFilledWithCopies"},
	}, {
		"payload that is sent", "the receiver, by the context ID",
		"what it has; if received, that ID, digest, sender, recipients, type, filename, teamset (`publisher.Publisher.ContextID`)",
		"up to the receiver", "without an ID each call of `Publish` has a new one",
		"publisher.contextID", []string{"TestContextID", "TestReceivedContextIDIsNotSentWithSomethingElse", "TestRetriesIntoTheGatewayAreRecognizable", "TestSeveralMessagesHaveSeveralUUIDs"},
	},
}

// TestIdentityTable compares the table with docs/identity.md, and looks for the code and the
// tests of each row.
func TestIdentityTable(t *testing.T) {
	t.Parallel()
	var rows []string
	page, _, _ := strings.Cut(readFile(t, "docs/identity.md"), "\n## ") // other tables follow
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "| ") {
			rows = append(rows, strings.TrimSpace(line))
		}
	}
	want := []string{"| the same | who decides | by | for how long | when it cannot be told |"}
	tests := testNames(t)
	for _, s := range identities {
		want = append(want, "| "+strings.Join([]string{s.what, s.who, s.by, s.lasts, s.untold}, " | ")+" |")
		i := strings.LastIndex(s.code, ".")
		if !declares(t, s.code[:i], s.code[i+1:]) {
			t.Errorf("%q: there is no %s", s.what, s.code)
		}
		for _, test := range s.tests {
			if len(tests[test]) == 0 {
				t.Errorf("%q: there is no %s", s.what, test)
			}
		}
		if len(s.tests) == 0 {
			t.Errorf("%q has no test", s.what)
		}
	}
	for i := range max(len(rows), len(want)) {
		if i >= len(rows) || i >= len(want) || rows[i] != want[i] {
			t.Fatalf("row %d of docs/identity.md is\n%s\nwant\n%s", i, strings.Join(rows[min(i, len(rows)):], "\n"), strings.Join(want[min(i, len(want)):], "\n"))
		}
	}
}

// declares reports whether a package has a function or method of that name.
func declares(t *testing.T, dir, name string) bool {
	t.Helper()
	files := testkit.Must(filepath.Glob(filepath.Join(top(t), filepath.FromSlash(dir), "*.go")))(t)
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file := testkit.Must(parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution))(t)
		if slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
			f, ok := d.(*ast.FuncDecl)
			return ok && f.Name.Name == name
		}) {
			return true
		}
	}
	return false
}
