package command

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
)

const testLong = `Runs the routes of the configuration FILE on the messages in each file CASES, with
neither gateway nor brokers, and compares what they do with what is expected: the
routes that publish, topics, metadata, and what is filtered or goes to the poison queue.

A file with cases is YAML:

  cases:
    - name: task data of one tenant
      message:
        event: MESSAGE_RECEIVED      # default; names as in topic templates
        type: iso:11783:-10:taskdata:zip
        tenant: 7b2
        filename: field.zip
        metadata: {priority: high}   # any other
        payload_file: field.zip      # beside this file; or payload, payload_base64
      expect:                        # [] if no route publishes or poisons it
        - route: task-data
          topic: 7b2.iso:11783:-10:taskdata:zip
          metadata: {team: team-7b2} # at least these; "" for none
        - {route: pictures, outcome: filtered}

Routes whose source is NATS or Kafka get the message that says so: route: NAME beside
type. A route that publishes or poisons the message without being expected to fails the
case. outcome is published (default), filtered or poisoned, with class (permanent,
handler) and reason (a part of it); messages is how many are published, topics without
the prefix of the sink. Missing environment variables and files of the configuration
are no mistakes here.

With --record, nothing is tested: a new file with cases is made of messages that came,
each with what the routes do with it now, to be checked and corrected. The messages are
in EVENTS, which "agrimill tail --json --save DIRECTORY" wrote (- means stdin), or, with
--trace, in the journal of a running agrimill, which keeps no payload.

Exit status: 0 every case passed; 1 one failed; 2 a file is invalid.`

func newTestCommand(p *program) *cobra.Command {
	junit := ""
	var record testRecord
	cmd := &cobra.Command{
		Use:     "test FILE (CASES... | --record CASES EVENTS...)",
		GroupID: groupPipeline,
		Short:   "test what a configuration does with messages",
		Long:    testLong,
		Example: `  agrimill test agrimill.yaml cases.yaml
  agrimill test --junit report.xml agrimill.yaml cases.yaml
  agrimill test --record new.yaml agrimill.yaml events.jsonl
  agrimill test --record one.yaml --trace 'field 1.zip' agrimill.yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 && (record.file == "" || len(args) == 0) {
				return usagef("expected a configuration FILE and at least one file with CASES")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(args[0], config.Options{Env: p.env, AllowMissing: true})
			if err != nil {
				return invalid(err)
			}
			if record.file != "" {
				return record.run(cmd.Context(), p, cfg, args[1:])
			}
			suites := make([]testSuite, len(args)-1)
			for i, name := range args[1:] {
				var suite testSuite
				err := await(cmd.Context(), func() (err error) { // it may be a pipe
					suite, err = readCases(name)
					return err
				})
				if err != nil {
					return invalid(err)
				}
				suites[i] = suite
			}
			return p.runTests(cmd.Context(), cfg, suites, junit)
		},
	}
	cmd.Flags().StringVar(&junit, "junit", "", "also write the results to `FILE`, as JUnit XML")
	cmd.Flags().StringVar(&record.file, "record", "", "make a new `FILE` with cases of messages that came")
	cmd.Flags().StringArrayVar(&record.queries, "trace", nil, "with --record, the message that `ID|FILENAME` finds in the journal; may be repeated")
	cmd.Flags().StringVar(&record.at.address, "admin", "", "with --trace, `HOST:PORT` of the status page (default: admin.address of the configuration)")
	record.at.tokenFlag(cmd)
	cmd.MarkFlagsMutuallyExclusive("record", "junit")
	return cmd
}

type testSuite struct {
	XMLName  xml.Name   `xml:"testsuite"`
	Name     string     `xml:"name,attr"`
	Tests    int        `xml:"tests,attr"`
	Failures int        `xml:"failures,attr"`
	Seconds  seconds    `xml:"time,attr"`
	Cases    []testCase `xml:"testcase"`
}

type seconds float64

// MarshalText returns milliseconds as three decimals.
func (s seconds) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%.3f", float64(s)), nil }

func (p *program) runTests(ctx context.Context, cfg *config.Config, suites []testSuite, junit string) error {
	trial := pipeline.NewTrial(cfg)
	passed, failed := 0, 0
	for i := range suites {
		suite := &suites[i]
		for n := range suite.Cases {
			c := &suite.Cases[n]
			began := time.Now()
			problems, err := c.run(ctx, trial)
			if err != nil {
				return fmt.Errorf("%s: case %s: %w", cell(suite.Name), cell(c.Name), err)
			}
			c.Seconds = seconds(time.Since(began).Seconds())
			suite.Seconds += c.Seconds
			verdict := "ok  "
			if len(problems) > 0 {
				verdict = "FAIL"
				suite.Failures++
				c.Failure = &failure{Message: problems[0], Text: strings.Join(problems, "\n")}
			}
			_, err = fmt.Fprintf(p.stdout, "%s %s: %s\n", verdict, cell(suite.Name), cell(c.Name))
			for _, problem := range problems {
				if err == nil {
					_, err = fmt.Fprintf(p.stdout, "     %s\n", cell(problem))
				}
			}
			if err != nil {
				return err
			}
		}
		suite.Tests = len(suite.Cases)
		passed, failed = passed+suite.Tests-suite.Failures, failed+suite.Failures
	}
	_, err := fmt.Fprintf(p.stdout, "%s: %d passed, %d failed\n", plural(passed+failed, "case"), passed, failed)
	if junit != "" {
		err = errors.Join(err, writeJUnit(junit, suites))
	}
	if err == nil && failed > 0 {
		return exitWith(statusFailed)
	}
	return err
}

func writeJUnit(name string, suites []testSuite) error {
	report := struct {
		XMLName xml.Name `xml:"testsuites"`
		Suites  []testSuite
	}{Suites: suites}
	data, err := xml.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append([]byte(xml.Header), append(data, '\n')...), 0o644)
}
