package command

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
)

type validation struct {
	File string `json:"file"`
	// Valid says that run would accept it, whatever the warnings.
	Valid    bool             `json:"valid"`
	Problems []config.Problem `json:"problems"`
}

func newValidateCommand(p *program) *cobra.Command {
	var allowMissing bool
	cmd := &cobra.Command{
		Use:     "validate FILE",
		GroupID: groupPipeline,
		Short:   "report every mistake in a configuration",
		Long: `Reads a configuration as run does, including environment variables and files with
secrets, and reports every mistake at once, with line, key and a suggestion. It does not
connect to anything; see agrimill check for that.

Each mistake is a line FILE:LINE:COLUMN: KEY: what is wrong; what to do. A warning is
something that works but is probably not intended.

--allow-missing is for places without the secrets, such as a repository's tests: it
reports unset variables and unreadable files as warnings.

Exit status: 0 valid, perhaps with warnings; 2 invalid.`,
		Example: `  agrimill validate agrimill.yaml
  agrimill validate --json agrimill.yaml`,
		Args:              exactly("configuration FILE"),
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
			status := statusOK
			if !result.Valid {
				status = statusUsage
			}
			return ended(p.write(result, func() error { return p.writeValidation(result, loaded) }), status)
		},
	}
	cmd.Flags().BoolVar(&p.asJSON, "json", false, "write JSON")
	cmd.Flags().BoolVar(&allowMissing, "allow-missing", false, "report missing environment variables and files as warnings")
	return cmd
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
