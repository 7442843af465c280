package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// newFlags returns a set of flags that leaves all output to the program.
func newFlags() *flag.FlagSet {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	return flags
}

// parse takes flags wherever they stand and returns the other arguments. What
// follows "--" is no flag.
func parse(flags *flag.FlagSet, args []string) ([]string, error) {
	var rest []string
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		left := flags.Args()
		ended := len(left) < len(args) && args[len(args)-len(left)-1] == "--"
		if len(left) == 0 || ended {
			return append(rest, left...), nil
		}
		rest, args = append(rest, left[0]), left[1:]
	}
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

// Set adds a value.
func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

// choice returns a flag's setter that allows certain values only.
func choice(value *string, allowed ...string) func(string) error {
	return func(given string) error {
		if !slices.Contains(allowed, given) {
			return fmt.Errorf("must be %s", strings.Join(allowed, " or "))
		}
		*value = given
		return nil
	}
}

// maxDays is what a time.Duration can hold.
const maxDays = 100_000

// parseSince reads a time, a day (in UTC), or a duration before now; d is 24 hours.
func parseSince(text string, now time.Time) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n float64
		n, err = strconv.ParseFloat(days, 64)
		if !(n >= 0 && n <= maxDays) { // not a number is neither
			n = -1
		}
		d = time.Duration(n * 24 * float64(time.Hour))
	}
	if err != nil || d < 0 {
		return time.Time{}, errors.New("must be a duration such as 90m or 2d, a day such as 2026-11-20, or a time such as 2026-11-20T08:00:00Z")
	}
	return now.Add(-d), nil
}
