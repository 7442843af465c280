// Package isotime parses the date-times of ISO 8601 and RFC 3339, as services and senders write
// them.
package isotime

import (
	"bytes"
	"time"
)

// Parse parses a date-time and returns it in UTC. It accepts RFC 3339 and what ISO 8601 also
// allows: the basic form, week and ordinal dates, a time without seconds or minutes, 24:00, a leap
// second, a fraction with a comma, an offset without minutes. Like many programs it also accepts a
// space between date and time, lower-case letters, and the time zone's name in brackets after the
// offset. Digits beyond the nanosecond are cut off, and a time without offset is in UTC. A date
// without a time is not a date-time. The year of the result is between 0 and 9999, so that RFC 3339
// can express it.
func Parse(s []byte) (time.Time, bool) {
	// Package time is faster with the usual form, of which it is as strict as the parser but for the hour's digits.
	if n := len(s); n >= len("2006-01-02T15:04:05Z") && n <= len("2006-01-02T15:04:05.999999999Z") && s[n-1] == 'Z' && s[13] == ':' {
		if t, err := time.Parse(time.RFC3339, string(s)); err == nil {
			return t, true
		}
	}
	const longest = 128 // a time zone's name included
	if s = bytes.TrimSpace(s); len(s) > longest {
		return time.Time{}, false
	}
	p := &parser{rest: bytes.ToUpper(s), ok: true}
	year, month, day := p.date()
	if !p.skip("T") && !p.skip(" ") {
		return time.Time{}, false
	}
	clock := p.clock()
	offset := p.offset()
	t := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Add(clock - offset)
	if !p.ok || len(p.rest) > 0 || t.Year() < 0 || t.Year() > 9999 {
		return time.Time{}, false
	}
	return t, true
}

// parser takes parts off the beginning of a date-time. What it returns counts only while it is ok.
type parser struct {
	rest []byte
	ok   bool
}

// skip takes text if it comes next, and reports whether it did.
func (p *parser) skip(text string) (found bool) {
	p.rest, found = bytes.CutPrefix(p.rest, []byte(text))
	return found
}

// require takes text, which must come next if wanted and must not otherwise.
func (p *parser) require(text string, wanted bool) { p.ok = p.skip(text) == wanted && p.ok }

// number takes a number of the given digits between low and high.
func (p *parser) number(digits, low, high int) int {
	n := 0
	if p.digits() < digits {
		p.ok = false
		return 0
	}
	for _, c := range p.rest[:digits] {
		n = n*10 + int(c-'0')
	}
	p.rest = p.rest[digits:]
	p.ok = p.ok && low <= n && n <= high
	return n
}

// digits returns how many digits come next.
func (p *parser) digits() int {
	for i, c := range p.rest {
		if c < '0' || c > '9' {
			return i
		}
	}
	return len(p.rest)
}

// date takes a calendar, ordinal or week date. The day may be beyond its month, for time.Date to
// normalize.
func (p *parser) date() (year int, month time.Month, day int) {
	year = p.number(4, 0, 9999)
	extended := p.skip("-")
	switch {
	case p.skip("W"):
		week := p.number(2, 1, 53)
		p.require("-", extended)
		weekday := p.number(1, 1, 7)
		// January 4 is in week 1, which begins on Monday.
		first := int(time.Date(year, 1, 4, 0, 0, 0, 0, time.UTC).Weekday()+6) % 7
		day = 4 - first + (week-1)*7 + weekday - 1
		_, last := time.Date(year, 12, 28, 0, 0, 0, 0, time.UTC).ISOWeek()
		p.ok = p.ok && week <= last
		return year, 1, day
	case p.digits() == 3:
		return year, 1, p.number(3, 1, daysIn(year, 1, 12))
	}
	month = time.Month(p.number(2, 1, 12))
	p.require("-", extended)
	return year, month, p.number(2, 1, daysIn(year, month, month))
}

// daysIn returns how many days the months from first to last have.
func daysIn(year int, first, last time.Month) int {
	from := time.Date(year, first, 1, 0, 0, 0, 0, time.UTC)
	return int(time.Date(year, last+1, 1, 0, 0, 0, 0, time.UTC).Sub(from) / (24 * time.Hour))
}

// clock takes a time of day.
func (p *parser) clock() time.Duration {
	unit := time.Hour // of the last part
	hour := p.number(2, 0, 24)
	clock := time.Duration(hour) * unit
	extended := p.skip(":")
	if extended || p.digits() > 0 {
		unit = time.Minute
		clock += time.Duration(p.number(2, 0, 59)) * unit
		if extended && p.skip(":") || !extended && p.digits() > 0 {
			unit = time.Second
			clock += time.Duration(p.number(2, 0, 60)) * unit // 60 is a leap second
		}
	}
	if p.skip(".") || p.skip(",") {
		n := p.digits()
		p.ok = p.ok && n > 0
		nanos := 0
		for i := range 9 {
			nanos *= 10
			if i < n {
				nanos += int(p.rest[i] - '0')
			}
		}
		p.rest = p.rest[n:]
		clock += time.Duration(nanos) * (unit / time.Second)
	}
	p.ok = p.ok && (hour < 24 || clock == 24*time.Hour)
	return clock
}

// offset takes what a time is ahead of UTC, and the zone's name in brackets, which repeats it.
func (p *parser) offset() time.Duration {
	p.skip(" ")
	var offset time.Duration
	switch sign := time.Duration(1); {
	case len(p.rest) == 0:
		return 0
	case p.skip("-"):
		sign = -1
		fallthrough
	case p.skip("+"):
		offset = sign * time.Duration(p.number(2, 0, 23)) * time.Hour
		for unit := time.Minute; unit >= time.Second && (p.skip(":") || p.digits() > 0); unit /= 60 {
			offset += sign * time.Duration(p.number(2, 0, 59)) * unit
		}
	default:
		p.ok = (p.skip("Z") || p.skip("UTC") || p.skip("GMT")) && p.ok
	}
	if n := len(p.rest); n > 2 && p.rest[0] == '[' && p.rest[n-1] == ']' {
		p.rest = nil
	}
	return offset
}
