package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Units of go test.
const (
	nsPerOp     = "ns/op"
	cpuPerOp    = "cpu-ns/op" // of internal/test/bench
	bytesPerOp  = "B/op"
	allocsPerOp = "allocs/op"
)

// row is what a benchmark is compared with.
type row struct {
	name string
	// floor is the benchmark that does the minimum of the work, or the same work by other
	// means. Empty: this one is a floor itself.
	floor string
	aim   aim
}

// aim is how long an event may take, or how many times as long as the floor and with how
// many allocations. The zero value is no aim.
type aim struct {
	ns            float64
	times, allocs float64
	text          string
}

func atLeast(perSecond float64) aim {
	return aim{ns: 1e9 / perSecond, text: "≥ " + number(perSecond) + "/s"}
}

func atMost(ns float64) aim { return aim{ns: ns, text: "≤ " + number(ns) + " ns"} }

func atMostTimes(times, allocs float64) aim {
	return aim{times: times, allocs: allocs, text: "× ≤ " + number(times) + ", ≤ " + number(allocs) + " allocs"}
}

// withinTimes is an aim for the time beside the floor or peer alone.
func withinTimes(times float64) aim {
	return aim{times: times, allocs: math.Inf(1), text: "× ≤ " + number(times)}
}

// section is a part of the table.
type section struct {
	title string
	rows  []row
}

// The aims are those of internal/test/bench/results.md.
var sections = []section{
	{"In memory: parse and decode", eachSize(row{name: "ParseDecode", floor: "FloorScan", aim: atMost(1000)})},
	{"Stream over HTTP, one core", slices.Concat(
		eachSize(row{name: "FloorStream", floor: "FloorHTTP"}),
		eachSize(row{name: "Stream", floor: "FloorStream"}),
		eachSize(row{name: "Subscriber/ByKey", floor: "FloorStream", aim: atLeast(200_000)}),
		eachSize(row{name: "Subscriber/Unordered", floor: "FloorStream", aim: atLeast(200_000)}),
	)},
	{"Router with its whole chain, sink that does nothing, one core", []row{
		{"Router/ByKey/1KiB", "Subscriber/ByKey/1KiB", atLeast(120_000)},
		{"Router/ByKey/12KiB", "Subscriber/ByKey/12KiB", aim{}},
		{"Router/Unordered/1KiB", "Subscriber/Unordered/1KiB", atLeast(120_000)},
		{"Router/Unordered/12KiB", "Subscriber/Unordered/12KiB", aim{}},
		{"RouterPublisher/1KiB", "Router/ByKey/1KiB", aim{}},
		{"RouterPublisher/12KiB", "Router/ByKey/12KiB", aim{}},
	}},
	{"Two cores, of which the gateway takes its share, by key", []row{
		{"TwoCores/Subscriber", "Subscriber/ByKey/1KiB", withinTimes(0.8)},
		{"TwoCores/Router", "Router/ByKey/1KiB", withinTimes(0.71)},
	}},
	{"Gateway to JetStream with file storage, 1 KiB, by messages in flight, two cores with the server", []row{
		{"JetStream/ByKey/1", "BareJetStream/1", aim{}},
		{"JetStream/ByKey/16", "BareJetStream/16", aim{}},
		{"JetStream/ByKey/256", "BareJetStream/256", atLeast(45_000)},
		{"JetStream/Unordered/1", "BareJetStream/1", aim{}},
		{"JetStream/Unordered/16", "BareJetStream/16", aim{}},
		{"JetStream/Unordered/256", "BareJetStream/256", atLeast(45_000)},
	}},
	{"Gateway to Kafka, 1 KiB, by messages in flight, two cores with the broker's stand-in", []row{
		{"Kafka/ByKey/1", "BareKafka/1", aim{}},
		{"Kafka/ByKey/16", "BareKafka/16", aim{}},
		{"Kafka/ByKey/256", "BareKafka/256", aim{}},
		{"Kafka/Unordered/1", "BareKafka/1", aim{}},
		{"Kafka/Unordered/16", "BareKafka/16", aim{}},
		{"Kafka/Unordered/256", "BareKafka/256", aim{}},
	}},
	{"Gateway to a broker behind 1 ms of network each way, 1 KiB, 256 in flight, by keys, two cores with the broker", []row{
		{"Order/plain/1", "BareOrder", aim{}},
		{"Order/plain/16", "BareOrder", withinTimes(8.3)},
		{"Order/pipelined/1", "BareOrder", withinTimes(2)},
		{"Order/pipelined/16", "BareOrder", withinTimes(1.43)},
		{"OrderKafka/plain/1", "BareOrderKafka/1", aim{}},
		{"OrderKafka/plain/16", "BareOrderKafka/16", aim{}},
		{"OrderKafka/pipelined/1", "BareOrderKafka/1", withinTimes(2)},
		{"OrderKafka/pipelined/16", "BareOrderKafka/16", withinTimes(1.43)},
	}},
	{"Gateway to JetStream behind 5 ms of network each way, 1 KiB, 256 in flight, by keys, two cores with the server", []row{
		{"OrderFar/plain/1", "BareOrderFar", aim{}},
		{"OrderFar/plain/16", "BareOrderFar", aim{}},
		{"OrderFar/pipelined/1", "BareOrderFar", aim{}},
		{"OrderFar/pipelined/16", "BareOrderFar", aim{}},
	}},
	{"Broker to a gateway that answers after 20 ms, 1 KiB, 256 keys in order, two cores with the broker", []row{
		{"WayBack/nats", "FloorWayBack", atLeast(5_000)},
		{"WayBack/kafka/1", "FloorWayBack", atLeast(5_000)},
		{"WayBack/kafka/6", "FloorWayBack", atLeast(5_000)},
	}},
	{"Ways to share the load: routes in one process, consumers behind JetStream, two cores with the server", []row{
		{"ShareRoutes/2", "ShareRoutes/1", aim{}},
		{"ShareRoutes/4", "ShareRoutes/1", aim{}},
		{"ShareConsumers/2", "ShareConsumers/1", aim{}},
		{"ShareConsumers/4", "ShareConsumers/1", aim{}},
	}},
	{"Publisher, one message after the other, one core", eachSize(row{name: "Publisher", floor: "FloorPost", aim: atMostTimes(1.15, 75)})},
	{"Middlewares alone, 1 KiB, one core", []row{
		{"Middleware/PoisonQueue", "Middleware/None", aim{}},
		{"Middleware/Retry", "Middleware/None", aim{}},
		{"Middleware/Dedup", "Middleware/None", aim{}},
		{"Middleware/Recoverer", "Middleware/None", aim{}},
	}},
}

// eachSize turns one row into three; only the first has the aim.
func eachSize(r row) []row {
	var rows []row
	for i, size := range []string{"/1KiB", "/12KiB", "/192KiB"} {
		sized := row{name: r.name + size, floor: r.floor + size}
		if i == 0 {
			sized.aim = r.aim
		}
		rows = append(rows, sized)
	}
	return rows
}

// write prints the tables in Markdown. Floors come before what is compared with them;
// benchmarks without a row come last; rows without a result are omitted.
func write(out io.Writer, r *results) error {
	runs := 0
	for _, s := range r.samples {
		runs = max(runs, len(s))
	}
	var text strings.Builder
	fmt.Fprintf(&text, "Medians of %d repetitions (%s). × is the time divided by that of the floor or peer:\n"+
		"the median over the repetitions. CPU is the processor time of the process, without the gateway.\n", runs, strings.Join(r.environment, ", "))
	shown := map[string]bool{}
	for _, s := range sections {
		var rows []row
		show := func(row row) {
			if r.samples[row.name] != nil && !shown[row.name] {
				shown[row.name] = true
				rows = append(rows, row)
			}
		}
		for _, row := range s.rows {
			show(rowOf(row.floor))
			show(row)
		}
		writeSection(&text, s.title, rows, r)
	}
	writeMemory(&text, r, shown)
	var rest []row
	for _, name := range r.names {
		if !shown[name] {
			rest = append(rest, row{name: name})
		}
	}
	writeSection(&text, "Others", rest, r)
	_, err := io.WriteString(out, text.String())
	return err
}

// The benchmarks of internal/test/peakmem, and the aim for those that stream.
const (
	memoryPrefix = "peakmem.PeakMemory/"
	heldMB       = "peak-MB"
	residentMB   = "rss-MB"
	memoryAim    = 64
)

// writeMemory prints the memory that large payloads take.
func writeMemory(text *strings.Builder, r *results, shown map[string]bool) {
	table := [][]string{
		{"payload", "peak MB", "resident MB", "MB/s", "aim"},
		{"---", "--:", "--:", "--:", "---"},
	}
	for _, name := range r.names {
		mode, ok := strings.CutPrefix(name, memoryPrefix)
		samples := r.samples[name]
		held := column(samples, heldMB)
		if !ok || len(held) == 0 {
			continue
		}
		shown[name] = true
		verdict := ""
		if !strings.Contains(mode, "/inline/") {
			verdict = fmt.Sprintf("≤ %d MB: reached", memoryAim)
			if median(held) > memoryAim {
				verdict = fmt.Sprintf("≤ %d MB: missed", memoryAim)
			}
		}
		table = append(table, []string{
			mode, number(median(held)), optional(column(samples, residentMB)), optional(column(samples, "MB/s")), verdict,
		})
	}
	if len(table) > 2 {
		text.WriteString("\n### Peak memory for one large payload\n\n")
		writeTable(text, table)
	}
}

// rowOf returns the row of a benchmark that another one is compared with. It may have its
// own floor.
func rowOf(name string) row {
	for _, s := range sections {
		for _, r := range s.rows {
			if r.name == name {
				return r
			}
		}
	}
	return row{name: name}
}

func writeSection(text *strings.Builder, title string, rows []row, r *results) {
	if len(rows) == 0 {
		return
	}
	table := [][]string{
		{"benchmark", "ns/event", "events/s", "CPU ns", "B/event", "allocs", "×", "floor or peer", "aim"},
		{"---", "--:", "--:", "--:", "--:", "--:", "--:", "---", "---"},
	}
	for _, row := range rows {
		samples, floor := r.samples[row.name], r.samples[row.floor]
		ns := median(column(samples, nsPerOp))
		beside := ""
		if floor != nil {
			beside = row.floor
		}
		table = append(table, []string{
			row.name, number(ns), number(1e9 / ns), optional(column(samples, cpuPerOp)),
			optional(column(samples, bytesPerOp)), optional(column(samples, allocsPerOp)),
			ratioText(samples, floor), beside, verdict(samples, floor, row.aim),
		})
	}
	fmt.Fprintf(text, "\n### %s\n\n", title)
	writeTable(text, table)
}

// writeTable prints a table whose second line is the rule: a trailing colon right-aligns
// the column.
func writeTable(text *strings.Builder, table [][]string) {
	for i, cells := range table {
		text.WriteByte('|')
		for j, cell := range cells {
			width := 2 // of the rule
			for _, other := range table {
				width = max(width, utf8.RuneCountInString(other[j]))
			}
			fill := width - utf8.RuneCountInString(cell)
			right := strings.HasSuffix(table[1][j], ":")
			switch {
			case i == 1 && right:
				cell = strings.Repeat("-", width-1) + ":"
			case i == 1:
				cell = strings.Repeat("-", width)
			case right:
				cell = strings.Repeat(" ", fill) + cell
			default:
				cell += strings.Repeat(" ", fill)
			}
			text.WriteString(" " + cell + " |")
		}
		text.WriteByte('\n')
	}
}

// column returns the samples' values for a unit.
func column(samples []sample, unit string) []float64 {
	var values []float64
	for _, s := range samples {
		if v, ok := s[unit]; ok {
			values = append(values, v)
		}
	}
	return values
}

// ratio returns the median of the quotients of each repetition: the i-th samples of both
// belong together, taken moments apart. ok is false without any.
func ratio(samples, floor []sample) (times float64, ok bool) {
	a, b := column(samples, nsPerOp), column(floor, nsPerOp)
	var quotients []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			quotients = append(quotients, a[i]/b[i])
		}
	}
	if len(quotients) == 0 {
		return 0, false
	}
	return median(quotients), true
}

func ratioText(samples, floor []sample) string {
	times, ok := ratio(samples, floor)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.2f", times)
}

// verdict returns the aim and whether the samples meet it.
func verdict(samples, floor []sample, aim aim) string {
	if aim.text == "" {
		return ""
	}
	if aim.ns > 0 {
		if ns := median(column(samples, nsPerOp)); ns > aim.ns {
			return fmt.Sprintf("%s: missed, %.0f %%", aim.text, 100*aim.ns/ns)
		}
		return aim.text + ": reached"
	}
	times, ok := ratio(samples, floor)
	allocs := column(samples, allocsPerOp)
	if !ok || len(allocs) == 0 {
		return aim.text
	}
	if times > aim.times || median(allocs) > aim.allocs {
		return aim.text + ": missed"
	}
	return aim.text + ": reached"
}

// optional returns the median, or an empty text if there is none.
func optional(values []float64) string {
	if len(values) == 0 {
		return ""
	}
	return number(median(values))
}

// median returns the middle value, or the mean of the two middle values. values is not
// empty.
func median(values []float64) float64 {
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare[float64])
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// number formats v with three digits, or without a fraction and with spaces between
// thousands.
func number(v float64) string {
	switch {
	case v == float64(int64(v)) && v < 1000, v >= 100:
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + " " + digits[i:]
	}
	return digits
}
