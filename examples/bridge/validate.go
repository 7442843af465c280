package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/examples/bridge/config"
)

// validation is what `validate --json` writes.
type validation struct {
	File string `json:"file"`
	// Valid says that the bridge would start with it, whatever the problems.
	Valid    bool             `json:"valid"`
	Problems []config.Problem `json:"problems"`
}

func newValidateCommand(p *program) *cobra.Command {
	var asJSON, allowMissing bool
	cmd := &cobra.Command{
		Use:     "validate FILE",
		GroupID: groupPipeline,
		Short:   "tell every mistake in a configuration",
		Long: `Reads a configuration as the bridge does, environment variables and files with
secrets included, and tells every mistake at once, with line, key and a suggestion. It
connects to nothing; see bridge check for that.

Each mistake is a line FILE:LINE:COLUMN: KEY: what is wrong; what to do. Warnings are
what works and is probably not meant.

--allow-missing is for places where the secrets are not, such as a repository's tests:
variables that are not set and files that cannot be read are warnings then.

Exit status: 0 valid, perhaps with warnings; 2 not valid.`,
		Example: `  bridge validate bridge.yaml
  bridge validate --json bridge.yaml`,
		Args:              oneFile,
		ValidArgsFunction: configFiles,
		RunE: func(_ *cobra.Command, args []string) error {
			loaded, err := config.Load(args[0], config.Options{Env: p.env, AllowMissing: allowMissing})
			result := validation{File: args[0], Valid: err == nil, Problems: []config.Problem{}}
			var problems *config.Problems
			switch {
			case errors.As(err, &problems):
				result.Problems = problems.List
			case err != nil:
				return err
			default:
				result.Problems = append(result.Problems, loaded.Warnings...)
			}
			return p.tellValidation(result, loaded, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.Flags().BoolVar(&allowMissing, "allow-missing", false, "take missing environment variables and files for warnings")
	return cmd
}

// tellValidation writes what was found, and returns the error that goes with it.
func (p *program) tellValidation(result validation, loaded *config.Config, asJSON bool) error {
	var err error
	if asJSON {
		err = p.writeJSON(result)
	} else {
		err = p.writeValidation(result, loaded)
	}
	if err == nil && !result.Valid {
		return told(statusUsage)
	}
	return err
}

func (p *program) writeValidation(result validation, loaded *config.Config) error {
	warnings := 0
	for _, problem := range result.Problems {
		if problem.Severity == config.SeverityWarning {
			warnings++
		}
		if _, err := fmt.Fprintln(p.stdout, redact(errors.New(problem.String()))); err != nil {
			return err
		}
	}
	summary := plural(len(result.Problems)-warnings, "mistake")
	if result.Valid {
		summary = fmt.Sprintf("valid: %s, %s, %s", plural(len(loaded.Routes), "route"), plural(len(loaded.Sinks), "sink"), plural(len(loaded.Endpoints), "endpoint"))
	}
	if warnings > 0 {
		summary += "; " + plural(warnings, "warning")
	}
	_, err := fmt.Fprintf(p.stdout, "%s: %s\n", cell(result.File), summary)
	return err
}

// oneFile takes the name of a configuration.
func oneFile(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("exactly one FILE with the configuration is needed")
	}
	return nil
}

// configFiles completes the name of a configuration.
func configFiles(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

func newSchemaCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		GroupID: groupOther,
		Short:   "print the JSON Schema of the configuration",
		Long: `Prints the JSON Schema (draft 2020-12) of the configuration, by which editors complete
keys and check values. With the YAML language server, put a comment at the top:

  # yaml-language-server: $schema=bridge.schema.json`,
		Example: "  bridge schema > bridge.schema.json",
		Args:    noArguments,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(p.stdout, config.Schema())
			return err
		},
	}
}
