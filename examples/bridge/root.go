package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Groups of commands in the help.
const (
	groupPipeline = "pipeline"
	groupGateway  = "gateway"
	groupPoison   = "poison"
	groupOther    = "other"
)

// newRootCommand returns the tree of all commands.
func newRootCommand(p *program) *cobra.Command {
	root := group(&cobra.Command{
		Use:   "bridge",
		Short: "farm data between the gateway and brokers",
		Long: `bridge moves farm data between the gateway and Kafka or NATS, and looks after it.

Results go to stdout, progress and errors to stderr. Flags may stand before or
after other arguments.

Exit status: 0 all is done, 1 something failed, 2 wrong usage or invalid
configuration.`,
		SilenceErrors: true, // told by program.report
		SilenceUsage:  true,
	})
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetUsageTemplate(usageTemplate)
	root.SetFlagErrorFunc(flagError)
	root.AddGroup(
		&cobra.Group{ID: groupPipeline, Title: "The pipeline:"},
		&cobra.Group{ID: groupGateway, Title: "The gateway:"},
		&cobra.Group{ID: groupPoison, Title: "What could not be handled:"},
		&cobra.Group{ID: groupOther, Title: "Other:"},
	)
	root.SetHelpCommand(newHelpCommand())
	root.SetCompletionCommandGroupID(groupOther)
	root.AddCommand(
		newRunCommand(p),
		newValidateCommand(p),
		newCheckCommand(p),
		newTenantsCommand(p),
		newEndpointsCommand(p),
		newSendCommand(p),
		newTailCommand(p),
		newPoisonCommand(p),
		newEmulatorCommand(p),
		newSchemaCommand(p),
		newVersionCommand(p),
	)
	// Cobra's own, in the words of the others.
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Short = "make the shell complete commands, flags and values"
		}
	}
	return root
}

// group makes a command one that only has commands below it.
func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("a command is needed: %s", strings.Join(names(cmd), ", "))
		}
		return unknownCommand(cmd, args[0])
	}
	// Without it, cobra would show the help and be content.
	cmd.RunE = func(*cobra.Command, []string) error { return nil }
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(commands...)
	return cmd
}

// noArguments takes flags only.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}

// exactly takes one argument besides flags.
func exactly(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("exactly one %s is needed, there are %d", what, len(args))
		}
		return nil
	}
}

func names(cmd *cobra.Command) (list []string) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			list = append(list, sub.Name())
		}
	}
	return list
}

func unknownCommand(cmd *cobra.Command, name string) error {
	text := fmt.Sprintf("no command %q", name)
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		slices.Sort(near)
		return usagef("%s; did you mean %s?", text, strings.Join(near, " or "))
	}
	return usagef("%s; there are: %s", text, strings.Join(names(cmd), ", "))
}

// flagError explains what is wrong with the flags.
func flagError(_ *cobra.Command, err error) error {
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) && len(unknown.GetSpecifiedShortnames()) > 1 {
		return usagef("%s; flags have two dashes: --%s", err, unknown.GetSpecifiedShortnames())
	}
	return err
}

// newHelpCommand returns the help command. Cobra's own takes an unknown command
// for no failure.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND...]",
		Short:   "say more about a command",
		GroupID: groupOther,
		RunE: func(cmd *cobra.Command, args []string) error {
			found := cmd.Root()
			for _, name := range args {
				i := slices.IndexFunc(found.Commands(), func(c *cobra.Command) bool { return c.Name() == name })
				if i < 0 {
					return unknownCommand(found, name)
				}
				found = found.Commands()[i]
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			found, _, err := cmd.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return names(found), cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// useLine says in one line how a command is to be used.
func useLine(cmd *cobra.Command) string {
	if cmd.HasAvailableSubCommands() {
		return cmd.CommandPath() + " COMMAND"
	}
	return cmd.UseLine()
}

// usageTemplate is cobra's, with one line of usage and flags that fit a terminal.
const usageTemplate = `Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}
{{- if .HasExample}}

Examples:
{{.Example}}{{end}}
{{- if .HasAvailableSubCommands}}{{$commands := .Commands}}
{{- range $group := .Groups}}

{{.Title}}{{range $commands}}{{if and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}
{{- if not .AllChildCommandsHaveGroup}}

Commands:{{range $commands}}{{if and (eq .GroupID "") .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}
{{- if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}{{end}}
{{- if .HasAvailableInheritedFlags}}

Flags of every command:
{{.InheritedFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}{{end}}
{{- if .HasAvailableSubCommands}}

"{{.CommandPath}} COMMAND --help" says more about a command.{{end}}
`
