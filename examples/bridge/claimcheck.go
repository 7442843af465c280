package main

import (
	"context"

	"github.com/spf13/pflag"
	_ "gocloud.dev/blob/fileblob" // the driver of file:// buckets

	"github.com/agrimill/agrimill/sinks/claimcheck"
)

// claimCheck is where payloads are that are not in their messages.
type claimCheck struct {
	url, prefix string
	// configured is what the bridge's configuration says; without a URL nothing.
	configured claimcheck.Config
}

func (c *claimCheck) define(flags *pflag.FlagSet) {
	flags.StringVar(&c.url, "claim-check", "", "`URL` of the bucket with large payloads, file:///… (default: that of --config, or CLAIM_CHECK_URL)")
	flags.StringVar(&c.prefix, "claim-check-prefix", "", "what the names of all payloads begin with")
}

// open returns nil when none is configured.
func (c *claimCheck) open(ctx context.Context, env func(string) string) (*claimcheck.Store, error) {
	config := claimcheck.Config{URL: c.url, Prefix: c.prefix}
	if c.url == "" && c.configured.URL != "" {
		config = c.configured
	} else if c.url == "" {
		config.URL = env("CLAIM_CHECK_URL")
	}
	if config.URL == "" {
		return nil, nil
	}
	if err := config.Validate(); err != nil {
		return nil, usagef("%s", err)
	}
	return claimcheck.New(ctx, config)
}
