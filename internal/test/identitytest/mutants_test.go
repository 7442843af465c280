package identitytest

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var runMutants = flag.Bool("mutants", false, "build each mutant and run the random programs against it; three minutes")

// mutant breaks one rule of docs/identity.md in a file of package router.
type mutant struct{ name, file, old, new string }

var mutants = []mutant{
	{"the delivery key without the endpoint", "key.go", "	head = appendPart(head, endpoint)\n", ""},
	{"the delivery key without the message IDs", "key.go", "	for _, id := range ids {\n		buf = appendPart(buf, id)\n	}\n	if id := meta[gateway.KeyMessageID]; id != \"\" && ids == nil {\n		return appendPart(buf, id), true\n	}", "	if id := meta[gateway.KeyMessageID]; id != \"\" && ids == nil {\n		return buf, true\n	}"},
	{"a delivery from a broker is not named by its place", "key.go", "name := msgctx.Delivery(msg.Context()); name != \"\"", "name := msgctx.Delivery(msg.Context()); name == \"never\""},
	{"chunks have content keys", "key.go", "c.sibling && payloadSize(msg) >= below", "false"},
	{"what differs under a context ID is forgotten", "key.go", "if c.sibling && !s.alike(c) {", "if c.sibling && !s.alike(c) && false {"},
	{"the content key without type and filename", "key.go", "		gateway.KeyMessageType, gateway.KeyFilename, gateway.KeyTeamsetContextID,\n", "		gateway.KeyTeamsetContextID,\n"},
	{"the content key without the context ID", "key.go", "gateway.KeyEndpointID, gateway.KeyDirectRecipients, gateway.KeyContextID,\n		gateway.KeyMessageType,", "gateway.KeyEndpointID, gateway.KeyDirectRecipients,\n		gateway.KeyMessageType,"},
	{"no content keys", "key.go", "	keys.Content = hash(append(buf, c.digest[:]...))", "	hash(append(buf, c.digest[:]...))"},
	{"what is filtered is remembered", "dedup.go", "done = err == nil && (del == nil || !del.rejected)", "done = err == nil"},
	{"what failed is remembered", "dedup.go", "done = err == nil && (del == nil || !del.rejected)", "done = true"},
	{"nothing is remembered", "dedup.go", "done = err == nil && (del == nil || !del.rejected)", "_ = err"},
	{"a recognized repetition is not remembered", "dedup.go", "reserved.Key == ContentKey && own.Valid() == nil", "false"},
	{"a replay goes by the content", "dedup.go", "claim.Keys = Keys{Delivery: key}", "claim.Keys = keys"},
	{"a replay is taken for the attempt before", "produced.go", "buf = binary.AppendUvarint(buf, uint64(n.replay))", "buf = binary.AppendUvarint(buf, 0)"},
	{"made messages are named without payload", "produced.go", "if bytes.Equal(m.Payload, n.received.Payload) {", "if bytes.Equal(m.Payload, n.received.Payload) || true {"},
	{"made messages are named without metadata", "produced.go", "		set = append(set, key)\n", ""},
	{"equal messages have one name", "produced.go", "	if ordinal == 0 {", "	if true {"},
	{"made messages are named without the delivery", "produced.go", "	buf = append(buf, n.delivery.key[:]...)\n", ""},
	{"a retry asks the handler again", "route.go", "		if made.begun {\n", "		if made.begun && false {\n"},
	{"records are named without the delivery", "poison.go", "KeyOf(\"poison\", route, id.key.String(), strconv.Itoa(count))", "KeyOf(\"poison\", route, strconv.Itoa(count))"},
	{"records are named without their count", "poison.go", "KeyOf(\"poison\", route, id.key.String(), strconv.Itoa(count))", "KeyOf(\"poison\", route, id.key.String())"},
	{"records have no names", "poison.go", "ok && id.named {", "ok && false {"},
}

// TestMutants builds the router with each mutant, and wants the random programs to find it. Without
// -mutants it only checks that the mutants apply.
func TestMutants(t *testing.T) {
	t.Parallel()
	router, err := filepath.Abs("../../../router")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			path := filepath.Join(router, m.file)
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), m.old); n != 1 {
				t.Fatalf("%s has %q %d times, want once", m.file, m.old, n)
			}
			if !*runMutants {
				return
			}
			dir := t.TempDir()
			changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
			text, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
			if err != nil {
				t.Fatal(err)
			}
			for name, content := range map[string]string{changed: strings.Replace(string(source), m.old, m.new, 1), overlay: string(text)} {
				if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out, err := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-run", "^TestRandomPrograms$", ".", "-programs", "10000").CombinedOutput()
			switch {
			case strings.Contains(string(out), "build failed"):
				t.Fatalf("%s", out)
			case err == nil:
				t.Error("nothing found it")
			default:
				lines := strings.Split(strings.TrimSpace(string(out)), "\n")
				for _, line := range lines {
					if strings.Contains(line, "run it alone with") {
						t.Log(strings.TrimSpace(line))
					}
				}
			}
		})
	}
}
