//go:build peer

package isoxml

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
)

// peerRecord is a record as the npm package isoxml reads it, or behind them how long it took to read all of them.
type peerRecord struct {
	Log                              string
	Time                             int64
	North, East, PDOP, HDOP          *float64
	Up, Satellites, UTCTime, UTCDate *int64
	Status                           string
	Valid                            bool
	Values                           map[string]int64
	Nanoseconds                      float64
}

// peerFolder is a folder with the npm package in it.
func peerFolder(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("NODE IS ABSENT, RECORDS AND SPEED ARE NOT COMPARED WITH THOSE OF THE PEER: %v", err)
		}
	}
	dir := t.TempDir()
	testkit.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "peer"))))
	install := exec.CommandContext(t.Context(), "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
	return dir
}

// TestPeerRecords compares every record of every log that a task names with what
// the npm package isoxml reads, and how fast both decode those logs from memory.
func TestPeerRecords(t *testing.T) {
	dir := peerFolder(t)
	for _, name := range []string{
		"taskdata_2021-04-09.zip", "taskdata_small.zip", "taskdata_big.zip", "taskdata_mw_4fc231c3.zip", "taskdata_totals.zip",
	} {
		t.Run(name, func(t *testing.T) {
			file := testkit.Must(filepath.Abs(farmFile(t, name)))(t)
			node := exec.CommandContext(t.Context(), "node", "peer.mjs", file)
			node.Dir, node.Stderr = dir, os.Stderr
			in, out := testkit.Must(node.StdinPipe())(t), testkit.Must(node.StdoutPipe())(t)
			testkit.NoError(t, node.Start())
			lines := bufio.NewScanner(out)
			lines.Buffer(nil, 1<<20)
			next := func() (peer peerRecord) {
				if !lines.Scan() {
					t.Fatal("the peer has no more records")
				}
				if err := json.Unmarshal(lines.Bytes(), &peer); err != nil {
					t.Fatalf("%v: %s", err, lines.Bytes())
				}
				return peer
			}
			compared := 0
			for _, log := range openFile(t, file).Sets[0].Logs {
				if log.TaskID == "" {
					continue
				}
				for record, err := range log.Records {
					if err != nil {
						continue
					}
					comparePeer(t, log.Name, record, next())
					if compared++; t.Failed() {
						t.FailNow()
					}
				}
			}
			t.Logf("%d records are equal", compared)
			compareSpeed(t, file, func() float64 {
				testkit.Must(io.WriteString(in, "again\n"))(t)
				took := next().Nanoseconds
				if took == 0 {
					t.Fatal("the peer has more records")
				}
				return took
			})
			testkit.NoError(t, in.Close())
			testkit.NoError(t, node.Wait())
		})
	}
}

// TestPeerDictionary compares the dictionary with that of the npm package isoxml, which is an extract of the public list of another day.
func TestPeerDictionary(t *testing.T) {
	node := exec.CommandContext(t.Context(), "node", "dictionary.mjs")
	node.Dir, node.Stderr = peerFolder(t), os.Stderr
	lines := strings.Split(strings.TrimSpace(string(testkit.Must(node.Output())(t))), "\n")
	spellings := strings.NewReplacer("n.a.", "", "0.00%", "%")
	for _, line := range lines {
		cells := strings.Split(line, "\t")
		ddi := farmdata.DDI(testkit.Must(strconv.ParseUint(cells[0], 10, 16))(t))
		got, ok := ddi.Meaning()
		equal(t, ddi.String(), fmt.Sprintf("%t %s %v", ok, got.Unit, got.Scale), fmt.Sprintf("true %s %v", spellings.Replace(cells[1]), testkit.Must(strconv.ParseFloat(cells[2], 64))(t)))
	}
	equal(t, "entries", len(lines), 641)
}

func comparePeer(t *testing.T, log string, record *farmdata.Record, peer peerRecord) {
	t.Helper()
	what := func(of string) string { return fmt.Sprintf("%s record %d: %s", log, record.Number, of) }
	p := record.Position
	equal(t, what("log"), log, peer.Log)
	equal(t, what("time"), record.Stamp.Wall.UnixMilli(), peer.Time)
	part := func(name string, has farmdata.PositionField, value float64, peer *float64) {
		if equal(t, what("has "+name), p.Has&has != 0, peer != nil); peer != nil {
			equal(t, what(name), value, *peer)
		}
	}
	float := func(n *int64) *float64 {
		if n == nil {
			return nil
		}
		f := float64(*n)
		return &f
	}
	part("north", farmdata.HasNorth, p.North, peer.North)
	part("east", farmdata.HasEast, p.East, peer.East)
	part("up", farmdata.HasUp, float64(p.Up), float(peer.Up))
	part("PDOP", farmdata.HasPDOP, p.PDOP, peer.PDOP)
	part("HDOP", farmdata.HasHDOP, p.HDOP, peer.HDOP)
	part("satellites", farmdata.HasSatellites, float64(p.Satellites), float(peer.Satellites))
	if p.Has&farmdata.HasStatus != 0 {
		equal(t, what("status"), strconv.Itoa(int(p.Status)), peer.Status)
	}
	equal(t, what("valid"), p.Valid() || p.OffEarth(), peer.Valid)
	if peer.UTCDate != nil && *peer.UTCDate != 0 && *peer.UTCDate != math.MaxUint16 && *peer.UTCTime < millisecondsOfDay {
		equal(t, what("UTC"), record.Stamp.UTC, farmdata.Epoch.AddDate(0, 0, int(*peer.UTCDate)).Add(time.Duration(*peer.UTCTime)*time.Millisecond))
	} else {
		equal(t, what("UTC"), record.Stamp.UTC.IsZero(), true)
	}
	values := map[string]int64{} // of a column that is there twice the peer has the last
	for _, v := range record.Values {
		values[v.Column.DDI.String()+"_"+v.Column.ElementID] = v.Raw
	}
	equal(t, what("values"), fmt.Sprint(values), fmt.Sprint(peer.Values))
}

// compareSpeed decodes the logs of tasks of a file from memory on one core, in turns with the peer, and reports the median of each.
func compareSpeed(t *testing.T, file string, peer func() float64) {
	t.Helper()
	o := testkit.Must(newOpener(t.Context(), Config{}))(t)
	data := testkit.Must(os.ReadFile(file))(t)
	testkit.NoError(t, o.addArchive(bytes.NewReader(data), int64(len(data)), "", 0))
	for dir, files := range o.folders { // unpacked, as the peer has them
		for name, f := range files {
			r := testkit.Must(f.open())(t)
			content := testkit.Must(io.ReadAll(r))(t)
			f.open = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
			o.folders[dir][name] = f
		}
	}
	archive := testkit.Must(o.archive())(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	values := 0
	var own, theirs []float64
	for range 7 {
		values = 0
		start := time.Now()
		for _, log := range archive.Sets[0].Logs {
			if log.TaskID == "" {
				continue
			}
			for record, err := range log.Records {
				if err == nil {
					values += len(record.Values)
				}
			}
		}
		own, theirs = append(own, float64(time.Since(start).Nanoseconds())), append(theirs, peer())
	}
	rate := func(took []float64) float64 {
		slices.Sort(took)
		return float64(values) / took[len(took)/2] * 1000
	}
	times := rate(own) / rate(theirs)
	t.Logf("%d values: %.1f million a second, the peer %.1f: %.0f times as many", values, rate(own), rate(theirs), times)
	if values > 10_000 && times < 5 { // others are too few to measure
		t.Errorf("%.1f times as fast as the peer, want at least 5 times", times)
	}
}
