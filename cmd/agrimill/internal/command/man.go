package command

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newManCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:     "man DIRECTORY",
		GroupID: groupOther,
		Short:   "write manual pages for all commands",
		Long: `Writes agrimill.1, agrimill-run.1 and so on, a page for each command, to DIRECTORY, which
is created if missing. They are dated SOURCE_DATE_EPOCH if the environment has it. "man"
finds them in ~/.local/share/man/man1.`,
		Example: `  agrimill man man1`,
		Args:    exactly("DIRECTORY"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := newRootCommand(p) // of its own: the texts are changed
			asMarkdown(root)
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "agrimill " + readVersion(p.build).Version, Manual: "agrimill"}, args[0])
		},
	}
}

// asMarkdown makes the texts of commands what the generator of the pages takes them for.
func asMarkdown(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true // the day of the build
	var text strings.Builder
	special := strings.NewReplacer("*", `\*`, "_", `\_`, "<", `\<`, "`", "\\`", "[", `\[`)
	for line := range strings.Lines(cmd.Long) {
		if strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t") {
			text.WriteString("    " + line) // a list or a block of code, as it is
		} else {
			_, _ = special.WriteString(&text, line)
		}
	}
	cmd.Long = text.String()
	for _, sub := range cmd.Commands() {
		asMarkdown(sub)
	}
}
