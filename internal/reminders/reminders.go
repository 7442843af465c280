// Package reminders determines when a persistent failure is logged again: after 1
// and 5 minutes and then every hour, so that it is neither hidden nor floods the log.
package reminders

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
)

// Due returns how many reminders are due for a failure that has lasted this long. A
// caller that has logged fewer logs one, however many it missed.
func Due(lasted time.Duration) int {
	switch {
	case lasted < time.Minute:
		return 0
	case lasted < 5*time.Minute:
		return 1
	default:
		return 2 + int(lasted/time.Hour)
	}
}

// Fields returns the fields of a log line about a failure that has lasted this long (0 if
// it just began): for a response of the gateway or of an intermediary, its status
// and content type.
func Fields(lasted time.Duration, err error) watermill.LogFields {
	fields := watermill.LogFields{}
	if lasted > 0 {
		fields["lasted"] = lasted.Round(time.Second)
	}
	var e *gateway.Error
	if errors.As(err, &e) && e.StatusCode != 0 {
		fields["status"] = e.StatusCode
		if e.ContentType != "" {
			fields["content_type"] = e.ContentType
		}
	}
	return fields
}

// Log tracks one failure at a time. It is not safe for concurrent use. The
// zero value is ready for use.
type Log struct {
	since  time.Time
	logged int
}

// Failed records that the failure continues, or begins, and returns how long it has
// lasted and whether to log it.
func (l *Log) Failed() (lasted time.Duration, due bool) {
	now := time.Now()
	if l.since.IsZero() {
		l.since = now
	}
	lasted = now.Sub(l.since)
	n := Due(lasted)
	due = n > l.logged
	l.logged = n
	return lasted, due
}

// Over records that the failure is over and returns how long it lasted; zero if
// there was none.
func (l *Log) Over() time.Duration {
	if l.since.IsZero() {
		return 0
	}
	lasted := time.Since(l.since)
	*l = Log{}
	return lasted
}
