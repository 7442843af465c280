package core

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

var runMutants = flag.Bool("mutants", false, "build each mutant and run the test that has to find it; ten minutes")

// The tests that find mutants.
const (
	byPrograms  = "^TestPrograms$"
	byScenarios = "^TestScenarios$"
	byHands     = "^(TestLeftByRouteThatEndedIsAskedFor|TestShutWithoutAnythingLeft|TestStalledKeysShareAQuarter|TestKeysOfWhichAllIsLeft|TestFullWindowOfWhatFailsInARoute|TestLargeMessagesThatHang|TestPayloadsFit|TestHandlersOfARouteThatEndedHang|TestRecallByTheClock|TestRouteBesideTheOthers|TestRouteBesideTheOthersHangs|TestRouteBesideTheOthersSetsNoPace|TestNothingIsConfirmedThatNobodyStored|TestConfirmedPartsAreNotSetAside)$"
)

// mutants break one rule of the core each: in a file, an old text becomes a new one, and a test finds it.
var mutants = []struct{ name, file, old, new, by string }{
	// What is confirmed, and what comes again.
	{"what one has left is confirmed", "take.go", "		it.state, m.left = gaveUp, true\n", "		it.state = gaveUp\n", byPrograms},
	{"it is confirmed when the first one has acked it", "take.go", "	if m.place == nowhere {\n", "	if m.place == nowhere || outcome == Acked && m.item.other != nil {\n", byPrograms},
	{"a file confirms what is open", "ledger.go", "		case e.having > 0, e.state == confirming:\n", "		case e.having > 0 && m.File == nil, e.state == confirming:\n", byPrograms},
	{"a file confirms what was given up", "ledger.go", "		case e.gone || e.given:\n", "		case e.gone:\n", byPrograms},
	{"what has a file that was left is confirmed", "ledger.go", "			e.gone = e.gone || m.left\n", "", byPrograms},
	{"who has acked what was left is forgotten", "ledger.go", "	case len(m.Confirm) == 0 && m.acked():\n", "	case false:\n", byPrograms},
	{"what is confirmed is taken again", "ledger.go", "	case e.state == awaiting, e.state == open && !e.given:", "	case e.state == awaiting:", byPrograms},
	{"a refusal is an ack", "message.go", "it.state == finished && !it.Refused && ", "it.state == finished && ", byPrograms},
	{"what a route did not get since it is shut is confirmed", "take.go", "	known.left = left || known.leftByOther(wanted)\n", "", byPrograms},
	{"what a route that ended left is never confirmed", "take.go", "		known.left = known.leftByOther(wanted)\n", "", byPrograms},
	{"a route that ends has acked everything", "core.go", "			c.leave(now, it)\n			c.leftBehind = true\n", "			if it.place > 0 {\nc.queue.Take(int(it.place))\n}\n			c.finish(now, it, Acked)\n", byPrograms},
	{"what nobody wants any longer is confirmed", "files.go", "	if len(wanted) == 0 { // all who wanted it have ended\n", "	if false {\n", byPrograms},
	{"a confirmation does not wait for a file", "files.go", "	return f.cfg.FileTaken && ", "	return false && f.cfg.FileTaken && ", byPrograms},
	{"what everybody refused is confirmed, although nobody stored it", "ledger.go", "		case !l.quarantines:\n", "		default:\n", byHands},
	{"what everybody refused does not come again", "ledger.go", "		l.asksAgain = true\n", "", byHands},
	// Order.
	{"the next one does not wait", "lane.go", "	case l.first == it:\n		return l.handed == 0\n", "	case l.first == it || l.Route.number == 1:\n		return l.handed == 0\n", byPrograms},
	{"the one behind does not wait for the place of the one before it", "lane.go", "before.state == handed && before.placed && ", "before.state == handed && ", byPrograms},
	{"what has failed does not hold the others back", "lane.go", "!l.Route.pipelines || l.Halted || l.careful", "!l.Route.pipelines || l.careful", byPrograms},
	{"what has failed is not tried alone", "lane.go", "!l.Route.pipelines || l.Halted || l.careful", "!l.Route.pipelines || l.Halted", byPrograms},
	{"any number may be ahead", "lane.go", "return r.ahead+1 < r.maxAhead", "return true", byPrograms},
	{"a node that is shut and gone is open", "window.go", "	w.keepShut(&l.node, r, laneKind, l.Key)\n", "", byPrograms},
	{"a node that comes back is open", "window.go", "	l.shut = w.shut.has(r.number, laneKind, key) || w.shut.has(r.number, vacated(laneKind), key)\n", "", byPrograms},
	{"a key of a tenant that is shut is open for others", "window.go", "		w.shutKey(r, l, key)\n", "", byPrograms},
	{"the oldest are left first", "shed.go", "return cmp.Compare(b.Opened, a.Opened) })\n	open,", "return cmp.Compare(a.Opened, b.Opened) })\n	open,", byPrograms},
	{"what is held comes before what was left", "files.go", "		w.absent = true\n", "		w.absent = false\n", byPrograms},
	{"what was confirmed is set aside with its file", "ledger.go", "e.state == left && e.at == 0", "e.state == left", byHands},
	{"a route beside the others shares the window", "shed.go", "		if !r.beside {\n", "		if r != nil {\n", byHands},
	{"a route beside the others shows them up", "shed.go", "		if !r.beside || h == behind {", "		if h != unknown {", byHands},
	{"a route beside the others goes on for them", "core.go", "	r.parent = nil //", "	//", byHands},
	{"what comes overtakes what a route beside the others left", "shed.go", "p.shut || p.first.Route.ordered ||", "p.shut || w.cfg.Ordered ||", byHands},
	{"what a route beside the others acks sets the pace", "take.go", "it.Nacks == 0 && !l.Route.beside", "it.Nacks == 0", byHands},
	{"what a route beside the others leaves sets the pace", "shed.go", "			if !l.Route.beside {\n", "			if l != nil {\n", byHands},
	{"a route beside the others fills a window of one", "window.go", " && !l.Route.beside {", " {", byHands},
	{"what hangs in a route that ended keeps its place", "core.go", "			c.wait(now, it) // for", "			// for", byHands},
	{"a new route gets what comes next", "core.go", "		r.shut = true\n", "", byPrograms},
	// Bounds.
	{"more move than fit", "window.go", "	return waits && w.moving < w.cfg.MaxInFlight && ", "	return waits && ", byPrograms},
	{"bytes are not bounded", "window.go", "	return waits && w.moving < w.cfg.MaxInFlight && w.movingBytes+m.Bytes <= w.cfg.MaxBytes\n", "	return waits && w.moving < w.cfg.MaxInFlight\n", byPrograms},
	{"what waits is not bounded", "window.go", "	waits := w.waiting-w.excusedWaiting < 2*w.cfg.MaxInFlight && ", "	waits := ", byPrograms},
	{"what is held is not bounded", "files.go", "held >= c.cfg.MaxHeld || ", "", byPrograms},
	{"what is not confirmed is not bounded", "window.go", "		w.unconfirmedNow-w.excusedUnconfirmed < w.cfg.MaxUnconfirmed\n", "		true\n", byPrograms},
	{"a payload that moves does not wait for what waits", "window.go", " && w.waitingBytes-w.excusedBytes < w.cfg.MaxBytes\n}\n\n// crowded", "\n}\n\n// crowded", byHands},
	{"the payload of what is new in one route is the oldest", "window.go", "it.Message.item.Opened < first.Message.item.Opened", "it.Opened < first.Opened", byPrograms},
	{"payloads of what waits are not bounded", "window.go", "		return w.waitingBytes-w.excusedBytes+n <= w.cfg.MaxBytes\n", "		return true\n", byHands},
	// What gets on.
	{"what comes once is left", "take.go", "!l.Route.ordered && len(it.Message.IDs) > 0 && ", "!l.Route.ordered && ", byPrograms},
	{"nobody is told that there is room", "take.go", "		c.effects.Room = true\n", "", byPrograms},
	{"no payload is larger than the window", "take.go", " || c.window.nextToEnd(m) {", " {", byPrograms},
	{"what waits keeps its place", "take.go", "		c.window.wait(it)\n		c.room()\n", "", byScenarios},
	{"what hangs keeps its place", "core.go", "		for _, it := range c.window.hung(now) {\n			c.wait(now, it)\n		}\n", "", byScenarios},
	{"nothing is left", "core.go", "		for _, it := range c.window.shed(now) {\n			c.leave(now, it)\n		}\n", "", byScenarios},
	{"what was left is not asked for", "take.go", "		c.wants, c.recallIn = true, recallAfter\n", "", byHands},
	{"the clock of one fault is that of the next one", "core.go", "		c.recallIn = recallAfter\n", "", byHands},
	{"the clock of a fault that lasts has no bound", "core.go", "min(2*c.recallIn, maxRecall)", "2 * c.recallIn", byHands},
	{"what was left has got on", "window.go", "n.left && !n.vacated && ", "n.left && ", byHands},
	{"all that are behind have all of the window", "shed.go", "share{total.items / 4, total.bytes / 4}", "total", byScenarios},
	{"a node of which something was left gets more", "shed.go", "		p.shut = p.shut || p.first.Route.ordered || !enough //", "		_ = enough //", byScenarios},
	{"large messages that hang shut nothing", "shed.go", " && bytes-passing.bytes <= keep.bytes", "", byHands},
	{"a tenant is shut for keys that are behind", "shed.go", "if len(lanes) > p.keeps.items {\n", "if true {\n", byHands},
	{"only the first one of a key hangs", "window.go", "				items = append(items, it)\n			}\n", "				items = append(items, it)\n			}\n			if l.Route.ordered {\n				break\n			}\n", byPrograms},
	{"what a route that ended left is not asked for", "core.go", "	if c.leftBehind && c.window.shared() > 0 {\n", "	if false {\n", byHands},
	{"what is not confirmed is not behind", "lane.go", "		at = min(at, l.unconfirmedSince)\n", "", byHands},
}

// TestMutants builds the tests with each mutant, and wants one of them to find it. Without -mutants it only checks that the
// mutants apply.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			path := testkit.Must(filepath.Abs(m.file))(t)
			source := testkit.Must(os.ReadFile(path))(t)
			if n := strings.Count(string(source), m.old); n != 1 {
				t.Fatalf("%s has %q %d times, want once", m.file, m.old, n)
			}
			if *runMutants {
				find(t, path, strings.Replace(string(source), m.old, m.new, 1), m.by)
			}
		})
	}
}

// find runs the tests with another text of a file.
func find(t *testing.T, path, text, tests string) {
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	replace := testkit.Must(json.Marshal(map[string]any{"Replace": map[string]string{path: changed}}))(t)
	for name, content := range map[string]string{changed: text, overlay: string(replace)} {
		testkit.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	}
	out, err := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-vet=off", "-run", tests, "-programs", "20000", "-failed", "1", ".").CombinedOutput()
	switch {
	case strings.Contains(string(out), "build failed"), strings.Contains(string(out), "no tests to run"):
		t.Fatalf("%s", out)
	case err == nil:
		t.Error("nothing found it")
	default:
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "_test.go:") && !strings.Contains(line, "streams") || strings.HasPrefix(line, "panic:") {
				t.Log(strings.TrimSpace(line))
				break
			}
		}
	}
}
