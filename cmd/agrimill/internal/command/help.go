package command

import "github.com/spf13/cobra"

// newHelpCommand returns the help command. Cobra's own succeeds for an unknown command.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND...]",
		Short:   "show the help of a command",
		GroupID: groupOther,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return err
			case len(rest) > 0:
				return unknownCommand(found, rest[0])
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

// usageTemplate is cobra's, with a single usage line and flags that fit a terminal.
const usageTemplate = `Usage:
  {{.UseLine}}
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

Global flags:
{{.InheritedFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}{{end}}
{{- if .HasAvailableSubCommands}}

"{{.CommandPath}} COMMAND --help" shows the help of a command.{{end}}
`

// completionHelp documents where the scripts go.
const completionHelp = `Writes a completion script for commands, flags and their values, such as the routes and
tenants of a running agrimill. Put the file where the
shell looks for such scripts; it takes effect in new shells:

  bash (with the package bash-completion)
    agrimill completion bash > ~/.local/share/bash-completion/completions/agrimill
    for all users: /etc/bash_completion.d/agrimill
  zsh (with "autoload -U compinit; compinit" in ~/.zshrc)
    agrimill completion zsh > "${fpath[1]}/_agrimill"
  fish
    agrimill completion fish > ~/.config/fish/completions/agrimill.fish
  PowerShell
    agrimill completion powershell > agrimill.ps1, and ". agrimill.ps1" in $PROFILE

Create missing directories first.`
