package command

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Command groups in the help.
const (
	groupPipeline = "pipeline"
	groupGateway  = "gateway"
	groupPoison   = "poison"
	groupOther    = "other"
)

func newRootCommand(p *program) *cobra.Command {
	root := group(&cobra.Command{
		Use:   "agrimill",
		Short: "move farm data between the gateway and brokers",
		Long: `agrimill moves farm data between the gateway and Kafka or NATS.

Results go to stdout, progress and errors to stderr. Flags may come before or
after other arguments.

Exit status: 0 success, 1 something failed, 2 wrong usage or an invalid
configuration. The help of run, demo and status names more.`,
		SilenceErrors: true, // program.report prints them
		SilenceUsage:  true,
	})
	root.SetIn(p.stdin)
	p.help.Writer = p.stdout
	root.SetOut(&p.help)
	root.SetErr(p.stderr)
	root.SetUsageTemplate(usageTemplate)
	root.SetFlagErrorFunc(flagError)
	root.Version = readVersion(p.build).String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.Flags().Bool("version", false, "print the version") // without cobra's -v, which many read as verbose
	root.AddGroup(
		&cobra.Group{ID: groupPipeline, Title: "The pipeline:"},
		&cobra.Group{ID: groupGateway, Title: "The gateway:"},
		&cobra.Group{ID: groupPoison, Title: "The poison queue:"},
		&cobra.Group{ID: groupOther, Title: "Other:"},
	)
	root.SetHelpCommand(newHelpCommand())
	root.SetCompletionCommandGroupID(groupOther)
	root.AddCommand(
		newInitCommand(p),
		newRunCommand(p),
		newValidateCommand(p),
		newTestCommand(p),
		newCheckCommand(p),
		newTenantsCommand(p),
		newEndpointsCommand(p),
		newSendCommand(p),
		newTailCommand(p),
		newStatusCommand(p),
		newTraceCommand(p),
		newWhyCommand(p),
		newPoisonCommand(p),
		newInspectCommand(p),
		newDemoCommand(p),
		newEmulatorCommand(p),
		newRecordCommand(p),
		newSchemaCommand(p),
		newManCommand(p),
		newVersionCommand(p),
	)
	p.completeFromRunning(root)
	// Cobra's own command, described like the others.
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Short = "generate shell completion for commands, flags and values"
			group(cmd).Long = completionHelp
			for _, shell := range cmd.Commands() {
				shell.Short = "write the completion script for " + shell.Name()
				shell.Long = "Writes the script to stdout. agrimill completion --help says where it goes."
			}
		}
	}
	refuseEmpty(root)
	return root
}

// refuseEmpty has commands refuse empty values, which shells make of variables that are not set, and which would count as not given.
func refuseEmpty(cmd *cobra.Command) {
	accept := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) (err error) {
		if slices.Contains(args, "") {
			return usagef("an argument is empty; is it a variable that is not set?")
		}
		cmd.Flags().Visit(func(f *pflag.Flag) {
			list, isList := f.Value.(pflag.SliceValue)
			empty := isList && slices.Contains(list.GetSlice(), "") || f.Value.Type() == "string" && f.Value.String() == ""
			if empty && !strings.Contains(f.Usage, "empty for") {
				err = usagef("--%s is empty; leave it out, or give it a value", f.Name)
			}
		})
		if err != nil || accept == nil {
			return err
		}
		return accept(cmd, args)
	}
	for _, sub := range cmd.Commands() {
		refuseEmpty(sub)
	}
}

// group turns a command into one that only has subcommands.
func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.Use += " COMMAND"
	cmd.DisableFlagsInUseLine = true
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("a command is required: %s", strings.Join(names(cmd), ", "))
		}
		return unknownCommand(cmd, args[0])
	}
	// Without it, cobra would print the help and succeed.
	cmd.RunE = func(*cobra.Command, []string) error { return nil }
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(commands...)
	return cmd
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
	text := fmt.Sprintf("unknown command %q", name)
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		slices.Sort(near)
		return usagef("%s; did you mean %s?", text, strings.Join(near, " or "))
	}
	return usagef("%s; available: %s", text, strings.Join(names(cmd), ", "))
}

// valueRules are what the values of flags have to be, by their types.
var valueRules = map[string]string{
	"bool": "true or false", "duration": "a duration such as 90s or 5m", "float64": "a number", "int": "a whole number", "int64": "a whole number",
}

// flagError adds a hint to an error about flags.
func flagError(_ *cobra.Command, err error) error {
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) && len(unknown.GetSpecifiedShortnames()) > 1 {
		return usagef("%s; flags have two dashes: --%s", err, unknown.GetSpecifiedShortnames())
	}
	if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
		flag := invalid.GetFlag()
		if rule := valueRules[flag.Value.Type()]; rule != "" {
			return usagef("--%s must be %s, not %q", flag.Name, rule, invalid.GetValue())
		}
	}
	return err
}
