package content_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// What an input of up to 2 MB may cost: processor time, all memory that Go has from the system, and processor time from one
// question to the context to the next one while it is opened.
const (
	mostInput  = 2 << 20
	mostTime   = 10 * time.Second
	mostMemory = 256 << 20
	mostGap    = 100 * time.Millisecond
)

// cost is what opening and summarizing took, measured in a process of its own.
type cost struct {
	Time, Gap time.Duration
	Memory    uint64
	Error     string
	Findings  string
}

// processor returns the processor time of the process or of the thread.
func processor(who int) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(who, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// attentive is a context that notes the longest time between two questions.
type attentive struct {
	context.Context
	last, longest time.Duration
}

func (a *attentive) Err() error {
	now := processor(syscall.RUSAGE_THREAD)
	a.last, a.longest = now, max(a.longest, now-a.last)
	return nil
}

// measure is what runs in the process of its own.
func measure(file string) (c cost) {
	runtime.LockOSThread()
	ctx := &attentive{Context: context.Background(), last: processor(syscall.RUSAGE_THREAD)}
	b, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	data, err := content.Open(ctx, bytes.NewReader(b), int64(len(b)), content.Config{})
	_ = ctx.Err()
	c.Gap = ctx.longest
	if err == nil {
		var summary *content.Summary
		if summary, err = content.Summarize(context.Background(), data); err == nil {
			_ = json.NewEncoder(io.Discard).Encode(summary)
			list := summary.More
			for _, set := range summary.Sets {
				list = append(list, set.Findings...)
				for _, log := range set.Logs {
					list = append(list, log.Findings...)
				}
			}
			for _, f := range list[:min(len(list), 2000)] {
				c.Findings += f.Text + "\n"
			}
		}
	}
	if err != nil {
		c.Error = err.Error()
	}
	c.Time = processor(syscall.RUSAGE_SELF)
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	c.Memory = memory.Sys
	return c
}

// No input of 2 MB takes more than it may; what would is refused by the name of a limit.
func TestBombs(t *testing.T) {
	if file := os.Getenv("FARMDATA_BOMB"); file != "" {
		b, err := json.Marshal(measure(file))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("MEASURED %s\n", b)
		return
	}
	for _, c := range bombs {
		t.Run(c.name, func(t *testing.T) {
			b := c.make(t)
			if len(b) > mostInput {
				t.Fatalf("%d bytes, want at most %d", len(b), mostInput)
			}
			file := filepath.Join(t.TempDir(), "bomb")
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBombs$", "-test.v")
			cmd.Env = append(os.Environ(), "FARMDATA_BOMB="+file)
			out, err := cmd.CombinedOutput()
			_, line, ok := strings.Cut(string(out), "MEASURED ")
			if err != nil || !ok {
				t.Fatalf("%v\n%s", err, out)
			}
			var got cost
			if err := json.NewDecoder(strings.NewReader(line)).Decode(&got); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d kB: %v, %d MB, asked the context every %v at most %s", len(b)>>10, got.Time, got.Memory>>20, got.Gap, got.Error)
			if got.Time > mostTime || got.Memory > mostMemory || got.Gap > mostGap {
				t.Errorf("got %v of processor time, %d MB, and %v between questions to the context, want at most %v, %d MB and %v",
					got.Time, got.Memory>>20, got.Gap, mostTime, mostMemory>>20, mostGap)
			}
			if said := got.Error + got.Findings; !strings.Contains(said, c.says) {
				t.Errorf("got %.2000s, want %q", said, c.says)
			}
		})
	}
}

type bomb struct {
	name string
	make func(t *testing.T) []byte
	says string
}

// filled is TaskData of parts, many times.
func filled(parts string, times int) func(*testing.T) []byte {
	return func(t *testing.T) []byte {
		return farmdatatest.Zip(t, "TASKDATA.XML", "<ISO11783_TaskData>"+strings.Repeat(parts, times)+"</ISO11783_TaskData>")
	}
}

// headers are so many logs with a header each.
func headers(n int, xml, bin string) (files []string) {
	for i := range n {
		files = append(files, fmt.Sprintf("TLG%05d.XML", i), xml, fmt.Sprintf("TLG%05d.BIN", i), bin)
	}
	return files
}

func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// repeated makes the directory of an archive name its last file so many times more.
func repeated(t *testing.T, archive []byte, names ...string) []byte {
	t.Helper()
	end := bytes.LastIndex(archive, []byte("PK\x05\x06"))
	start := bytes.LastIndex(archive, []byte("PK\x01\x02"))
	first := int(binary.LittleEndian.Uint32(archive[end+16:]))
	entry, tail := archive[start:end], slices.Clone(archive[end:])
	out := slices.Clone(archive[:end])
	old := int(binary.LittleEndian.Uint16(entry[28:]))
	for _, name := range names {
		record := slices.Clone(entry[:46])
		binary.LittleEndian.PutUint16(record[28:], uint16(len(name)))
		out = append(append(append(out, record...), name...), entry[46+old:]...)
	}
	for _, at := range []int{8, 10} {
		binary.LittleEndian.PutUint16(tail[at:], binary.LittleEndian.Uint16(tail[at:])+uint16(len(names)))
	}
	binary.LittleEndian.PutUint32(tail[12:], uint32(len(out)-first))
	return append(out, tail...)
}

// wideHeader has as many columns as an index can tell apart, but one.
var wideHeader = `<TIM A="" D="4">` + strings.Repeat(`<DLV A="0043" B="" C="DET1"/>`, 255) + `</TIM>`

var bombs = []bomb{
	{"a device with many values, headers with many columns", func(t *testing.T) []byte {
		device := `<ISO11783_TaskData><DVC A="DVC1"><DET A="DET1" B="1" C="1" E="0" F="0">` + numbered(60_000, `<DOR A="%d"/>`) + `</DET>` +
			numbered(60_000, `<DPD A="1%06d" B="0043" C="1" D="1"/>`) + `</DVC></ISO11783_TaskData>`
		return farmdatatest.Zip(t, append(headers(1000, wideHeader, ""), "TASKDATA.XML", device)...)
	}, ""},
	{"elements that share values", func(t *testing.T) []byte {
		device := `<ISO11783_TaskData><DVC A="DVC1">` + numbered(60_000, `<DET A="DET%d" B="1" C="1" E="0" F="0"><DOR A="1"/></DET>`) +
			numbered(60_000, `<DPD A="1" B="%04x" C="1" D="1"/>`) + `</DVC></ISO11783_TaskData>`
		files := []string{"TASKDATA.XML", device}
		for i := range 200 {
			var header strings.Builder
			for j := range 255 {
				fmt.Fprintf(&header, `<DLV A="%04x" B="" C="DET%d"/>`, (i*255+j)%60_000, i*255+j)
			}
			files = append(files, fmt.Sprintf("TLG%05d.XML", i), `<TIM A="">`+header.String()+`</TIM>`)
		}
		return farmdatatest.Zip(t, files...)
	}, ""},
	{"tasks", filled("<TSK/>", 480_000), "MaxMemory"},
	{"tasks that name logs", filled(`<TSK><TLG A="TLG00001"/></TSK>`, 240_000), "MaxMemory"},
	{"names of logs", func(t *testing.T) []byte {
		return farmdatatest.Zip(t, "TASKDATA.XML", "<ISO11783_TaskData><TSK>"+numbered(400_000, `<TLG A="TLG%d"/>`)+"</TSK></ISO11783_TaskData>")
	}, "MaxMemory"},
	{"points", filled(`<PNT/>`, 490_000), ""},
	{"fields of a point", filled(`<PFD><PLN><LSG><PNT C="1" D="1"/></LSG></PLN></PFD>`, 120_000), "MaxMemory"},
	{"elements", filled("<X/>", 700_000), "MaxElements"},
	{"elements of many names", func(t *testing.T) []byte {
		return farmdatatest.Zip(t, "TASKDATA.XML", "<ISO11783_TaskData>"+numbered(450_000, "<X%d/>")+"</ISO11783_TaskData>")
	}, "of other names"},
	{"IDs", func(t *testing.T) []byte {
		return farmdatatest.Zip(t, "TASKDATA.XML", "<ISO11783_TaskData><PFD>"+numbered(480_000, `<PNT C="1" D="1" G="PNT%d"/>`)+"</PFD></ISO11783_TaskData>")
	}, ""},
	{"references to nothing", func(t *testing.T) []byte {
		return farmdatatest.Zip(t, "TASKDATA.XML", "<ISO11783_TaskData>"+numbered(480_000, `<FRM A="FRM1" I="CTR%d"/>`)+"</ISO11783_TaskData>")
	}, "is not there"},
	{"text", filled("x", 1<<25), "MaxXML"},
	{"attributes", filled("<CTR "+strings.Repeat(`a="" `, 200_000)+"/>", 30), ""},
	{"long names", filled(`<CTR A="`+strings.Repeat("x", 1000_000)+`"/>`, 33), ""},
	{"bad values", filled(`<PNT A="x" C="y" D="z" E="q"/>`, 400_000), "MaxFindings"},
	{"bad values of many sets", func(t *testing.T) (b []byte) {
		var files []string
		for i := range 800 {
			files = append(files, fmt.Sprintf("%d/TASKDATA.XML", i), "<ISO11783_TaskData>"+strings.Repeat(`<PNT A="x" C="y" D="z" E="q"/>`, 500)+"</ISO11783_TaskData>")
		}
		return farmdatatest.Zip(t, files...)
	}, "MaxMemory"},
	{"sets", func(t *testing.T) (b []byte) {
		var files []string
		for i := range 9000 {
			files = append(files, fmt.Sprintf("%d/TASKDATA.XML", i), "<ISO11783_TaskData/>")
		}
		return farmdatatest.Zip(t, files...)
	}, ""},
	{"columns", func(t *testing.T) []byte { return farmdatatest.Zip(t, headers(2500, wideHeader, "")...) }, "MaxMemory"},
	{"zeros", func(t *testing.T) []byte {
		return farmdatatest.Zip(t, headers(2, wideHeader, strings.Repeat("\x00", 150<<20))...)
	}, "MaxUnpacked"},
	{"zeros within the limit", func(t *testing.T) []byte {
		return farmdatatest.Zip(t, headers(1, wideHeader, strings.Repeat("\x00", 255<<20))...)
	}, ""},
	{"values within the limit", func(t *testing.T) []byte {
		record := strings.Repeat("\x00", 6) + "\xff" + strings.Repeat("\x00", 255*5)
		return farmdatatest.Zip(t, headers(1, wideHeader, strings.Repeat(record, (255<<20)/len(record)))...)
	}, ""},
	{"one file under many names", func(t *testing.T) []byte {
		archive := farmdatatest.Zip(t, "TASKDATA.XML", "<ISO11783_TaskData/>", "TLG00000.BIN", strings.Repeat("\x00", 100<<20))
		var names []string
		for i := range 9000 {
			names = append(names, fmt.Sprintf("TLG%05d.BIN", i+1))
		}
		return repeated(t, archive, names...)
	}, "overlaps"},
	{"one archive under many names", func(t *testing.T) []byte {
		archive := farmdatatest.Zip(t, "TASKDATA.XML", "<ISO11783_TaskData/>", "a.zip", string(farmdatatest.Zip(t, "TASKDATA.XML", strings.Repeat(" ", 15<<20))))
		var names []string
		for i := range 9000 {
			names = append(names, fmt.Sprintf("a%d.zip", i))
		}
		return repeated(t, archive, names...)
	}, "overlaps"},
	{"grids of many zones, and presentations", func(t *testing.T) []byte {
		zones := numbered(50_000, `<TZN A="%d"><PDV A="0001" B="1" E="VPN49999"/></TZN>`)
		grids := strings.Repeat(`<GRD A="1" B="1" C="1" D="1" E="1" F="1" G="GRD00001" I="1"/>`, 20_000) + numbered(50_000, `<GRD A="1" B="1" C="1" D="1" E="1" F="1" G="GRD00001" I="2" J="%d"/>`)
		return farmdatatest.Zip(t, "GRD00001.BIN", "xxxx", "TASKDATA.XML", "<ISO11783_TaskData>"+numbered(50_000, `<VPN A="VPN%d" C="1"/>`)+"<TSK>"+zones+grids+"</TSK></ISO11783_TaskData>")
	}, ""},
	{"EFDI: tasks", func(*testing.T) []byte { return bytes.Repeat([]byte{0xBA, 0x01, 0}, 690_000) }, "MaxElements"},
	{"EFDI: logs", func(*testing.T) []byte {
		logs := bytes.Repeat([]byte{0xA2, 0x01, 2, 8, 0}, 400_000)
		return append(protowire.AppendVarint(protowire.AppendTag([]byte{8, 4}, 23, protowire.BytesType), uint64(len(logs))), logs...)
	}, "Max"},
	{"EFDI: devices", func(*testing.T) []byte { return append([]byte{8, 4}, bytes.Repeat([]byte{0x8A, 0x01, 0}, 600_000)...) }, "MaxElements"},
	{"EFDI: entries", func(*testing.T) []byte { return bytes.Repeat([]byte{0x22, 2, 0x22, 0}, 500_000) }, ""},
}
