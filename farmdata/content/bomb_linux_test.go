// The race detector multiplies processor time and memory; make test measures without it.

//go:build !race

package content_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

var every = flag.Bool("every", false, "measure what no limit refuses, too: 20 seconds of processor time more")

// mostGap is how much processor time may pass from one question to the context to the next one while an input is opened.
const mostGap = 100 * time.Millisecond

// cost is what opening and summarizing took, measured in a process of its own.
type cost struct {
	Time, Gap time.Duration
	Memory    uint64
	Error     string
	Findings  string
}

// attentive is a context that notes the longest time between two questions.
type attentive struct {
	context.Context
	last, longest time.Duration
}

func (a *attentive) Err() error {
	now := farmdatatest.Processor(syscall.RUSAGE_THREAD)
	a.last, a.longest = now, max(a.longest, now-a.last)
	return nil
}

// measure is what runs in the process of its own.
func measure(file, _ string) (c cost) {
	runtime.LockOSThread()
	ctx := &attentive{Context: context.Background(), last: farmdatatest.Processor(syscall.RUSAGE_THREAD)}
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
	c.Time = farmdatatest.Processor(syscall.RUSAGE_SELF)
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	c.Memory = memory.Sys
	return c
}

// No input of 2 MB takes more than it may; what would is refused by the name of a limit.
func TestBombs(t *testing.T) {
	if farmdatatest.IsApart(measure) {
		return
	}
	for _, c := range farmdatatest.Bombs() {
		if c.Says == "" && !*every { // it is read to its end
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			b := c.Make(t)
			got := farmdatatest.Apart[cost](t, b, "")
			t.Logf("%d kB: %v, %d MB, asked the context every %v at most %s", len(b)>>10, got.Time, got.Memory>>20, got.Gap, got.Error)
			if got.Time > farmdatatest.MostTime || got.Memory > farmdatatest.MostMemory || got.Gap > mostGap {
				t.Errorf("got %v of processor time, %d MB, and %v between questions to the context, want at most %v, %d MB and %v",
					got.Time, got.Memory>>20, got.Gap, farmdatatest.MostTime, farmdatatest.MostMemory>>20, mostGap)
			}
			if said := got.Error + got.Findings; !strings.Contains(said, c.Says) {
				t.Errorf("got %.2000s, want %q", said, c.Says)
			}
		})
	}
}
