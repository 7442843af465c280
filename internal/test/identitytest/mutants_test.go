package identitytest

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

var runMutants = flag.Bool("mutants", false, "build each mutant and run the tests that have to find it; five minutes")

// mutant breaks one rule of docs/identity.md in a file.
type mutant struct{ name, file, old, new string }

// finder is a test that finds mutants, with its arguments, in a package.
type finder struct {
	packageName string
	args        []string
}

var (
	inMemory = finder{"./internal/test/identitytest", []string{"-run", "^TestRandomPrograms$", "-programs", "100000"}}
	// moreJetStream is for what takes many programs to find.
	moreJetStream = finder{"./internal/test/identitytest", []string{"-run", "^TestJetStreamPrograms$", "-parallel", "8", "-jetstream", "1500"}}
	subscriptions = finder{"./internal/test/identitytest", []string{"-run", "^TestSubscriptionPrograms$", "-programs", "20000"}}
	jetStream     = finder{"./internal/test/identitytest", []string{"-run", "^TestJetStreamPrograms$", "-parallel", "8", "-jetstream", "150"}}
)

// mutants are what each finder has to find.
var mutants = []struct {
	by      finder
	mutants []mutant
}{
	{inMemory, []mutant{
		{"the delivery key without the endpoint", "router/key.go", "	head = appendPart(head, endpoint)\n", ""},
		{"the delivery key without the message IDs", "router/key.go", "	for _, id := range ids {\n		buf = appendPart(buf, id)\n	}\n	if id := meta[gateway.KeyMessageID]; id != \"\" && ids == nil {\n		return appendPart(buf, id), true\n	}", "	if id := meta[gateway.KeyMessageID]; id != \"\" && ids == nil {\n		return buf, true\n	}"},
		{"a delivery from a broker is not named by its place", "router/key.go", "name := msgctx.Delivery(msg.Context()); name != \"\"", "name := msgctx.Delivery(msg.Context()); name == \"never\""},
		{"chunks have content keys", "router/key.go", "c.sibling && payloadSize(msg) >= below", "false"},
		{"what differs under a context ID is forgotten", "router/key.go", "if c.sibling && !s.alike(c) {", "if c.sibling && !s.alike(c) && false {"},
		{"the content key without type and filename", "router/key.go", "		gateway.KeyMessageType, gateway.KeyFilename, gateway.KeyTeamsetContextID,\n", "		gateway.KeyTeamsetContextID,\n"},
		{"the content key without the context ID", "router/key.go", "gateway.KeyEndpointID, gateway.KeyDirectRecipients, gateway.KeyContextID,\n		gateway.KeyMessageType,", "gateway.KeyEndpointID, gateway.KeyDirectRecipients,\n		gateway.KeyMessageType,"},
		{"no content keys", "router/key.go", "	keys.Content = hash(append(buf, c.digest[:]...))", "	hash(append(buf, c.digest[:]...))"},
		{"what is filtered is remembered", "router/dedup.go", "done = err == nil && (del == nil || !del.rejected)", "done = err == nil && (del == nil || true)"},
		{"what failed is remembered", "router/dedup.go", "done = err == nil && (del == nil || !del.rejected)", "done = err == nil || del != nil || true"},
		{"what a transform drops is not remembered", "router/dedup.go", "done = err == nil && (del == nil || !del.rejected)", "done = err == nil && (del == nil || !del.filtered)"},
		{"nothing is remembered", "router/dedup.go", "done = err == nil && (del == nil || !del.rejected)", "_, _ = err, del"},
		{"a recognized repetition is not remembered", "router/dedup.go", "reserved.Key == ContentKey && own.Valid() == nil", "false"},
		{"a replay goes by the content", "router/dedup.go", "c.held = Keys{Delivery: c.key}", "c.held = keys"},
		{"a replay is taken for the attempt before", "router/produced.go", "buf = binary.AppendUvarint(buf, uint64(n.replay))", "buf = binary.AppendUvarint(buf, 0)"},
		{"made messages are named without payload", "router/produced.go", "if bytes.Equal(m.Payload, n.received.Payload) {", "if bytes.Equal(m.Payload, n.received.Payload) || true {"},
		{"made messages are named without metadata", "router/produced.go", "		set = append(set, key)\n", ""},
		{"equal messages have one name", "router/produced.go", "	if ordinal == 0 {", "	if true {"},
		{"made messages are named without the delivery", "router/produced.go", "	buf = append(buf, n.delivery.key[:]...)\n", ""},
		{"a retry asks the handler again", "router/publish.go", "		if made.begun {\n", "		if made.begun && false {\n"},
		{"a context ID goes with whatever it was copied onto", "publisher/contextid.go", `if msg.Metadata.Get(gateway.KeyEventType) == "" {`, "if true {"},
		{"a context ID goes with any payload", "publisher/contextid.go", `id, p.payloadName(msg), req.EndpointID}`, `id, "", req.EndpointID}`},
		{"a context ID goes with any sender", "publisher/contextid.go", `p.payloadName(msg), req.EndpointID}`, `p.payloadName(msg), ""}`},
		{"a context ID goes with any recipients", "publisher/contextid.go", `, slices.Sorted(slices.Values(req.DirectRecipients))...)`, `, slices.Sorted(slices.Values(req.DirectRecipients))[:0]...)`},
		{"each attempt has a context ID of its own", "publisher/contextid.go", "		return derivedID(parts...)", "		return derivedID(append(parts, uuid.NewString())...)"},
		{"each attempt has a time of its own", "router/publish.go", "		if d.value.SentAt.IsZero() {\n			d.value.SentAt = time.Now()", "		if true {\n			d.value.SentAt = time.Now()"},
		{"records are named without the delivery", "router/poisonrecord.go", "KeyOf(\"poison\", route, id.key.String(), strconv.Itoa(count))", "KeyOf(\"poison\", route, strconv.Itoa(count))"},
		{"records are named without their count", "router/poisonrecord.go", "KeyOf(\"poison\", route, id.key.String(), strconv.Itoa(count))", "KeyOf(\"poison\", route, id.key.String())"},
		{"records have no names", "router/poisonrecord.go", "ok && id.named {", "ok && false {"},
	}},
	{jetStream, []mutant{
		{"the UUID of a file without its endpoint", "subscriber/message.go", `name := e.ReceivingEndpointID + "\n" + strings.Join(ids, "\n")`, `name := strings.Join(ids, "\n")`},
		{"two endpoints share a UUID", "subscriber/message.go", "copy(name[copy(name[:], prefix):], key[:])", "copy(name[copy(name[:], prefix):], key[len(key)/2:])"},
		{"a retry asks the handler again", "router/publish.go", "		if made.begun {\n", "		if made.begun && false {\n"},
		{"the delivery key without the endpoint", "router/key.go", "	head = appendPart(head, endpoint)\n", ""},
		{"what is filtered is remembered", "router/dedup.go", "done = err == nil && (del == nil || !del.rejected)", "done = err == nil && (del == nil || true)"},
		{"records are named without their count", "router/poisonrecord.go", "KeyOf(\"poison\", route, id.key.String(), strconv.Itoa(count))", "KeyOf(\"poison\", route, id.key.String())"},
		{"JetStream does not know the names", "sinks/nats/marshaler.go", "d.set(natsgo.MsgIdHdr, id)", "_ = id"},
	}},
	{moreJetStream, []mutant{
		{"a replay is taken for the attempt before", "router/produced.go", "buf = binary.AppendUvarint(buf, uint64(n.replay))", "buf = binary.AppendUvarint(buf, 0)"},
	}},
	{finder{"./router", []string{"-run", "Names|Chunk|Keys"}}, []mutant{
		{"made messages are named without topic", "router/produced.go", "name := hash(appendPart(content, topic))", "name := hash(content)"},
		{"a file with larger parts raises the limit", "router/key.go", "	for part < below {\n", "	for part != below {\n"},
	}},
	{finder{"./router", []string{"-run", "Attempt|Kept|Made|Retr|Produced|SentAt|Sent"}}, []mutant{
		{"a retry sends another time", "router/produced.go", "	if d.value.SentAt.IsZero() {\n		d.value.SentAt = kept.sentAt\n	}\n", ""},
	}},
	{subscriptions, []mutant{
		{"a file confirms a chunk that was given up", "subscriber/internal/core/ledger.go", "e.message, e.given = 0, m.left", "e.message = 0"},
		{"chunks confirm a file that was left", "subscriber/internal/core/ledger.go", "e.gone = e.gone || m.left", "_ = e"},
		{"the acks of chunks confirm their file", "subscriber/internal/core/take.go", "if len(m.Confirm) > 0 && c.files.maybePart(m) {", "if false {"},
		{"chunks share the whole context ID", "subscriber/delivery.go", "if len(id) > uuidLen && numberedContext.MatchString(id) {", "if false {"},
		{"who has acked is forgotten", "subscriber/internal/core/ledger.go", "{ l.acked.Add(id, slices.Collect(m.AckedBy)) }", "{}"},
		{"what one has not acked is confirmed when it ends", "subscriber/internal/core/take.go", "		it.state, m.left = gaveUp, true\n", "		it.state, m.left = gaveUp, m.left || !l.route.ended\n"},
		{"what the others have acked waits for who has ended", "subscriber/internal/core/core.go", "if c.leftBehind && c.window.shared() > 0 {", "if false {"},
	}},
	{finder{"./internal/test/identitytest", []string{"-run", "^TestRefusalPrograms$", "-programs", "20000"}}, []mutant{
		{"a refusal is an ack", "subscriber/internal/core/message.go", "it.state == finished && !it.Refused && ", "it.state == finished && "},
		{"what is to be quarantined is confirmed", "subscriber/unmatched.go", "	last := refused && ", "	last := false && "},
		{"the quarantine does not wait for those who are asked", "subscriber/internal/core/take.go", "		if other.open() && !other.Refused {\n", "		if false {\n"},
		{"what one has acked is kept", "subscriber/internal/core/ledger.go", "e.took || took, ", "e.took && took, "},
	}},
	{finder{"./internal/test/identitytest", []string{"-run", "^TestBlobPrograms$", "-programs", "20000"}}, []mutant{
		{"what fits no payload is a copy", "sinks/blob/blob.go", "if whole { // this is a copy", "if there {"},
		{"the sidecar of another payload stays", "sinks/blob/blob.go", "if other.SHA256 != about.SHA256 {", "if other.SHA256 == \"-\" {"},
		{"a copy replaces the first one", "sinks/blob/blob.go", "IfNotExist: !replace", "IfNotExist: false"},
		{"what is acknowledged is not synced", "internal/filesync/filesync.go", "		err = file.Sync() // before Close renames it\n", ""},
		{"the names of what is acknowledged are not synced", "sinks/blob/blob.go", "		return false, filesync.Directories(ctx, p.bucket, key)\n", "		return false, nil\n"},
	}},
	{finder{"./internal/test/identitytest", []string{"-run", "^TestKafkaSwitchPrograms$", "-parallel", "8", "-switches", "160"}}, []mutant{
		{"a producer begins before the last one has ended", "sinks/kafka/topics.go", "case <-ctx.Done():\n			return nil, errDraining\n", "default:\n"},
		{"each limit has a lane of its own", "sinks/kafka/topics.go", "	if last != nil {\n		if last.lane.limits", "	if last != nil && last.lane.limits == limits {\n		if last.lane.limits"},
	}},
	{finder{"./sinks/kafka", []string{"-run", "LateCopies"}}, []mutant{
		{"a producer begins before the last one has ended", "sinks/kafka/topics.go", "case <-ctx.Done():\n			return nil, errDraining\n", "default:\n"},
		{"each limit has a lane of its own", "sinks/kafka/topics.go", "	if last != nil {\n		if last.lane.limits", "	if last != nil && last.lane.limits == limits {\n		if last.lane.limits"},
	}},
}

// TestMutants builds the tests with each mutant, and wants them to find it. Without -mutants it
// only checks that the mutants apply.
func TestMutants(t *testing.T) {
	t.Parallel()
	root := testkit.Must(filepath.Abs("../../.."))(t)
	for _, list := range mutants {
		for _, m := range list.mutants {
			t.Run(m.name, func(t *testing.T) {
				path := filepath.Join(root, m.file)
				source := testkit.Must(os.ReadFile(path))(t)
				if n := strings.Count(string(source), m.old); n != 1 {
					t.Fatalf("%s has %q %d times, want once", m.file, m.old, n)
				}
				if *runMutants {
					find(t, root, path, strings.Replace(string(source), m.old, m.new, 1), list.by)
				}
			})
		}
	}
}

// find runs the finder with another text of a file.
func find(t *testing.T, root, path, text string, by finder) {
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	replace := testkit.Must(json.Marshal(map[string]any{"Replace": map[string]string{path: changed}}))(t)
	for name, content := range map[string]string{changed: text, overlay: string(replace)} {
		testkit.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-overlay", overlay, by.packageName}, by.args...)...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	switch {
	case strings.Contains(string(out), "build failed"), strings.Contains(string(out), "no tests to run"):
		t.Fatalf("%s", out)
	case err == nil:
		t.Error("nothing found it")
	default:
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "run it alone with") || strings.HasPrefix(line, "--- FAIL") && !strings.Contains(line, "Programs") {
				t.Log(strings.TrimSpace(line))
				break
			}
		}
	}
}
