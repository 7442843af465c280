package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/examples/bridge/config"
)

// configFlag defines --config, which excludes the flags that say the same.
func configFlag(cmd *cobra.Command, path *string, others ...string) {
	cmd.Flags().StringVar(path, "config", "", "`FILE` with the bridge's configuration, which then says all about connections")
	completeFlag(cmd, "config", cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt))
	for _, other := range others {
		cmd.MarkFlagsMutuallyExclusive("config", other)
	}
}

// loadConfig reads the configuration of the bridge, and tells what is doubtful in
// it.
func (p *program) loadConfig(path string) (*config.Config, error) {
	loaded, err := config.Load(path, config.Options{Env: p.env})
	if err != nil {
		return nil, invalid(err)
	}
	for _, warning := range loaded.Warnings {
		p.notef("%s", redact(errors.New(warning.String())))
	}
	return loaded, nil
}
