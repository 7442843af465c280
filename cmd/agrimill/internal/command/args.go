package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
)

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}

func exactly(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("expected exactly one %s, got %d", what, len(args))
		}
		return nil
	}
}

func some(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("expected %s", what)
		}
		return nil
	}
}

func choice(cmd *cobra.Command, value *string, name, usage string, allowed ...string) {
	cmd.Flags().Func(name, usage, func(given string) error {
		if !slices.Contains(allowed, given) {
			return fmt.Errorf("must be %s or %s", strings.Join(allowed[:len(allowed)-1], ", "), allowed[len(allowed)-1])
		}
		*value = given
		return nil
	})
	completeFlag(cmd, name, cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp))
}

// completeFlag sets what the shell offers as the value of a flag.
func completeFlag(cmd *cobra.Command, name string, values cobra.CompletionFunc) {
	_ = cmd.RegisterFlagCompletionFunc(name, values) // fails only for an undefined flag
}

// isAddress reports whether a flag gives an address of TCP.
func isAddress(given string) bool {
	_, port, err := net.SplitHostPort(given)
	_, number := strconv.ParseUint(port, 10, 16)
	return err == nil && number == nil
}

// maxDays fits into a time.Duration.
const maxDays = 100_000

// parseSince parses a time, a day (in UTC), or a duration before now; d is 24 hours.
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
		if !(n >= 0 && n <= maxDays) { // rejects NaN, too
			n = -1
		}
		d = time.Duration(n * 24 * float64(time.Hour))
	}
	if err != nil || d < 0 {
		return time.Time{}, errors.New("must be a duration such as 90m or 2d, a day such as 2026-11-20, or a time such as 2026-11-20T08:00:00Z")
	}
	return now.Add(-d), nil
}

// limited returns a context that ends after --timeout; 0 means never.
func limited(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not finished within %s (--timeout)", timeout))
}

// mistaken is wrong usage: what a package says of its fields, in the names of the flags and arguments that set them.
func mistaken(err error, flags map[string]string) error {
	name := func(field string) string {
		field, _, _ = strings.Cut(field, "[")
		return cmp.Or(flags[field], field)
	}
	var texts []string
	for _, mistake := range validate.Fields(err) {
		texts = append(texts, name(mistake.Path)+" "+mistake.Rule(name))
	}
	if one := (*gateway.ValidationError)(nil); len(texts) == 0 && errors.As(err, &one) {
		texts = append(texts, name(one.Field)+" "+one.Rule)
	}
	if texts == nil {
		return err
	}
	return usagef("%s", strings.Join(texts, "; "))
}

// checkTenant checks --tenant before any request is made. Empty means that it was not given.
func checkTenant(id string) error {
	if id != "" && !config.IsUUID(id) {
		return usagef("--tenant must be the ID (UUID) of a tenant; agrimill tenants lists them")
	}
	return nil
}
