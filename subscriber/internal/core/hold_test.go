package core

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/msgctx"
)

type recorder struct{ _ int }

func (*recorder) Record([2][16]byte) {}

// A confirmation that waits takes at most 100 bytes: what is known of its message, the index of that, which has just grown, and its
// place among those that wait. With something to record it takes 150.
func TestMemoryOfWhatWaits(t *testing.T) {
	for limit, records := range map[int64][]msgctx.Record{100: nil, 150: {{Into: new(recorder)}}} {
		t.Run(fmt.Sprint(limit, " bytes"), func(t *testing.T) { testMemoryOfWhatWaits(t, limit, records) })
	}
}

func testMemoryOfWhatWaits(t *testing.T, limit int64, records []msgctx.Record) {
	const many = 90_000
	cfg := windowOf(10, true)
	names := &Names{Tenant: "t"}
	cfg.MaxUnsynced, cfg.Names = many, func(*Message, int32) *Names { return names }
	h := newByHand(t, cfg)
	r := h.add(everything)
	h.connects()
	h.acks(r, small(many, "t", "key")) // what is not for each of them is there
	horizon := &Horizon{After: time.Hour}
	before := heapInUse()
	for n := range many {
		if n%200 == 0 {
			h.now += slack
		}
		m := small(0, "t", "key")
		binary.BigEndian.PutUint64(m.IDs[0][24:], uint64(n))
		h.takes(Opened, m)
		h.Stored(h.now, &m.item, horizon, h.now, records)
		h.settles(r, m, Acked)
	}
	h.handed = nil
	if each := (heapInUse() - before) / many; h.held != many || each > limit {
		t.Errorf("%d wait, and each takes %d bytes", h.held, each)
	}
}
