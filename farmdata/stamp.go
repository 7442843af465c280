package farmdata

import (
	"errors"
	"strings"
	"time"
)

// Stamp is when something was. The zero value is an unknown time.
type Stamp struct {
	// Wall is the time as the data has it. With Local it is what the machine's
	// clock showed, written as if it were UTC.
	Wall time.Time
	// Local says that the offset of Wall to UTC is not known.
	Local bool
	// UTC is the time of the GPS receiver; the zero time where it was not recorded.
	UTC time.Time
}

// Time returns the best that is known: the GPS receiver's UTC, otherwise Wall.
// instant is false if that is a local time of unknown offset, which can be
// compared with other times of the same machine only.
func (s Stamp) Time() (t time.Time, instant bool) {
	if !s.UTC.IsZero() {
		return s.UTC, true
	}
	return s.Wall, !s.Local && !s.Wall.IsZero()
}

// IsZero reports whether no time is known.
func (s Stamp) IsZero() bool { return s.Wall.IsZero() && s.UTC.IsZero() }

const localLayout = "2006-01-02T15:04:05.999999999"

// String formats Time as RFC 3339, a local time without an offset, and an unknown
// time as the empty string.
func (s Stamp) String() string {
	t, instant := s.Time()
	switch {
	case t.IsZero():
		return ""
	case instant:
		return t.Format(time.RFC3339Nano)
	default:
		return t.Format(localLayout)
	}
}

// MarshalText returns String.
func (s Stamp) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes what String returns.
func (s *Stamp) UnmarshalText(text []byte) error {
	parsed, err := ParseStamp(string(text))
	if err == nil {
		*s = parsed
	}
	return err
}

// ParseStamp reads an xs:dateTime, also one without seconds, with a space or lower-case letters, or with an
// offset without a colon. A time without an offset is local; the empty string is the zero Stamp.
func ParseStamp(text string) (Stamp, error) {
	if text == "" {
		return Stamp{}, nil
	}
	plain, days := strings.ToUpper(text), 0
	if len(plain) > 10 && plain[10] == ' ' {
		plain = plain[:10] + "T" + plain[11:]
	}
	if len(plain) > 13 && plain[10:13] == "T24" && strings.Trim(plain[13:min(len(plain), 19)], ":0") == "" { // the end of the day
		plain, days = plain[:11]+"00"+plain[13:], 1
	}
	for _, seconds := range []string{":05", ""} { // fractions are read without being asked for
		for _, offset := range []string{"Z07:00", "Z0700", ""} {
			if t, err := time.Parse("2006-01-02T15:04"+seconds+offset, plain); err == nil {
				return Stamp{Wall: t.AddDate(0, 0, days), Local: offset == ""}, nil
			}
		}
	}
	return Stamp{}, errors.New("not a time of the form 2006-01-02T15:04:05, with or without an offset")
}
