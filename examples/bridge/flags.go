package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// choice defines a flag that takes certain values only.
func choice(cmd *cobra.Command, value *string, name, usage string, allowed ...string) {
	cmd.Flags().Func(name, usage, func(given string) error {
		if !slices.Contains(allowed, given) {
			return fmt.Errorf("must be %s", strings.Join(allowed, " or "))
		}
		*value = given
		return nil
	})
	completeFlag(cmd, name, cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp))
}

// completeFlag says what the shell offers as the value of a flag.
func completeFlag(cmd *cobra.Command, name string, values cobra.CompletionFunc) {
	_ = cmd.RegisterFlagCompletionFunc(name, values) // fails for a flag that is not defined
}

// wildcards reads a pattern in which * stands for any characters and ? for one.
func wildcards(text string) *regexp.Regexp {
	pattern := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(strings.ToValidUTF8(text, "\uFFFD")))
	return regexp.MustCompile("(?s)^" + pattern + "$")
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

// limited ends ctx after the time of --timeout; 0 means never.
func limited(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not finished after %s (--timeout)", timeout))
}
