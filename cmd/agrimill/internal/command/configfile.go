package command

import (
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
)

// configFlag defines --config, which excludes the flags that set the same things.
func configFlag(cmd *cobra.Command, path *string, others ...string) {
	cmd.Flags().StringVar(path, "config", "", "agrimill's configuration `FILE`, which then provides all connection settings")
	completeFlag(cmd, "config", cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt))
	for _, other := range others {
		cmd.MarkFlagsMutuallyExclusive("config", other)
	}
}

// configArgument accepts the configuration as an argument, too, as validate, check and run do.
func configArgument(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.Flags().Changed("config"):
		return noArguments(cmd, args)
	case len(args) > 1:
		return noArguments(cmd, args[1:])
	}
	return cmd.Flags().Set("config", args[0])
}

// loadConfig reads agrimill's configuration. Its warnings are for those who write it: validate, check and run
// show them.
func (p *program) loadConfig(path string) (*config.Config, error) {
	loaded, err := config.Load(path, config.Options{Env: p.env})
	if err != nil {
		return nil, invalid(err)
	}
	return loaded, nil
}

func configFiles(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}
