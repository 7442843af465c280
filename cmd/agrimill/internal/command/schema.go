package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
)

func newSchemaCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		GroupID: groupOther,
		Short:   "print the JSON Schema of the configuration",
		Long: `Prints the JSON Schema (draft 2020-12) of the configuration, with which editors complete
keys and check values. With the YAML language server, put a comment at the top:

  # yaml-language-server: $schema=agrimill.schema.json`,
		Example: "  agrimill schema > agrimill.schema.json",
		Args:    noArguments,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(p.stdout, config.Schema())
			return err
		},
	}
}
