package history

import (
	"cmp"
	"math/bits"
	"slices"
	"time"
)

// Range is how far back one looks.
type Range int

// The ranges.
const (
	// RangeHour is the last hour, by the minute.
	RangeHour Range = iota
	// RangeDay is the last day, by the quarter of an hour.
	RangeDay
	numRanges
)

// String returns the name of a range in the API: hour or day.
func (r Range) String() string { return [...]string{"hour", "day"}[r] }

// Step is how long a period is.
func (r Range) Step() time.Duration {
	return [...]time.Duration{time.Minute, 15 * time.Minute}[r]
}

// Periods is how many periods there are, the current one included.
func (r Range) Periods() int { return [...]int{60, 96}[r] }

// Duration is how long all of them are.
func (r Range) Duration() time.Duration { return r.Step() * time.Duration(r.Periods()) }

// number is that of the period of a time in Unix nanoseconds, counted from 1970.
func (r Range) number(at int64) int64 { return at / int64(r.Step()) }

// ring is a series of periods, oldest first, the newest of which have replaced the oldest.
type ring []*period

// at returns the period of a time in Unix nanoseconds; nil if that is too old.
func (r *ring) at(of Range, at int64) *period { return r.place(of, of.number(at)) }

// place returns the period of a number; nil if that is too old.
func (r *ring) place(of Range, number int64) *period {
	i, found := slices.BinarySearchFunc(*r, number, func(p *period, number int64) int { return cmp.Compare(p.number, number) })
	if !found {
		if last := len(*r) - 1; last >= 0 && (*r)[last].number-number >= int64(of.Periods()) {
			return nil
		}
		tooOld := 0
		for tooOld < i && number-(*r)[tooOld].number >= int64(of.Periods()) {
			tooOld++
		}
		i -= tooOld
		*r = slices.Insert(slices.Delete(*r, 0, tooOld), i, &period{number: number, backlog: -1, age: -1})
	}
	return (*r)[i]
}

// cut drops the periods after that of a time in Unix nanoseconds.
func (r *ring) cut(of Range, at int64) {
	for last := len(*r) - 1; last >= 0 && (*r)[last].number > of.number(at); last-- {
		*r = (*r)[:last]
	}
}

// each calls f with the periods from a time on, in Unix nanoseconds, to the period of another one, oldest first.
func (r ring) each(of Range, from, to int64, f func(*period)) {
	for _, p := range r {
		if p.number >= of.number(from) && p.number <= of.number(to) {
			f(p)
		}
	}
}

// period is what happened in one.
type period struct {
	number            int64
	counts            Counts
	inFlight, backlog int64         // the most
	age               time.Duration // the most
	latency           [numSteps]*histogram
}

func (p *period) add(other *period) {
	p.counts.add(other.counts)
	p.inFlight, p.backlog, p.age = max(p.inFlight, other.inFlight), max(p.backlog, other.backlog), max(p.age, other.age)
	for step, h := range other.latency {
		if h == nil {
			continue
		}
		if p.latency[step] == nil {
			p.latency[step] = new(histogram)
		}
		for i, n := range h {
			p.latency[step][i] += n
		}
	}
}

func (p *period) sample(change Counts, s *Sample) {
	p.counts.add(change)
	p.inFlight = max(p.inFlight, s.InFlight)
	p.backlog = max(p.backlog, s.Backlog)
	p.age = max(p.age, s.Age)
}

// took counts that a step took so long that it is in a class.
func (p *period) took(step Step, class int) {
	if p == nil {
		return
	}
	h := p.latency[step]
	if h == nil {
		h = new(histogram)
		p.latency[step] = h
	}
	if h[class]+1 != 0 {
		h[class]++
	}
}

// A histogram counts durations: those up to 128 µs together, those up to 73 minutes in two classes for each doubling, and
// those beyond together.
type histogram [2 + 2*(maxBits-minBits)]uint32

const (
	minBits = 17 // 2^17 ns: 131 µs
	maxBits = 42 // 2^42 ns: 73 minutes
)

func classOf(d time.Duration) int {
	n := uint64(max(d, 1)) - 1 // so that a bound belongs to what it bounds
	octave := bits.Len64(n)
	switch {
	case octave <= minBits:
		return 0
	case octave > maxBits:
		return len(histogram{}) - 1
	}
	return 1 + 2*(octave-1-minBits) + int(n>>(octave-2)&1)
}

// bound is the longest duration of a class; that of the last one is its shortest.
func bound(class int) time.Duration {
	if class == 0 {
		return 1 << minBits
	}
	half := min(class-1, 2*(maxBits-minBits)-1)
	low := time.Duration(1) << (minBits + half/2)
	return low + low/2*time.Duration(half%2+1)
}

// quantile returns a duration that so many per cent do not exceed, at most 50 per cent too long; and how many were counted.
func (h *histogram) quantile(percent uint64) (time.Duration, uint64) {
	var all uint64
	for _, n := range h {
		all += uint64(n)
	}
	if all == 0 {
		return 0, 0
	}
	rank, passed := (all*percent+99)/100, uint64(0)
	for i, n := range h {
		if passed += uint64(n); passed >= rank {
			return bound(i), all
		}
	}
	return bound(len(h) - 1), all
}
