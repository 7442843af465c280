package command

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
)

//go:embed init.yaml.tmpl
var initTemplate string

type initCommand struct {
	program *program
	file    string
	answers []*answer
	types   []string
}

type answer struct {
	flag, usage, question string
	value                 string // the default, until somebody answers
}

func newInitCommand(p *program) *cobra.Command {
	c := &initCommand{program: p, answers: []*answer{
		{"base-url", "`URL` of the gateway", "Address of the gateway", "${AGRIMILL_BASE_URL}"},
		{"token-url", "`URL` of the token endpoint", "Address of the token endpoint", "${AGRIMILL_TOKEN_URL}"},
		{"external-id", "external `ID` of the endpoint that receives, a URN of your choice", "External ID of your endpoint", "urn:example:farm"},
		{"name", "`NAME` of the endpoint, which farmers see", "Its name, which farmers see", "Farm"},
		{"receive", "message `TYPES` that it receives, separated by commas", "Message types that it receives", "iso:11783:-10:taskdata:zip"},
		{"to", "where messages go: `ADDRESS` of NATS, or kafka://HOST:PORT[,HOST:PORT]", "Where messages go, nats://HOST:PORT or kafka://HOST:PORT", "nats://127.0.0.1:4222"},
	}}
	cmd := &cobra.Command{
		Use:     "init [FILE]",
		GroupID: groupPipeline,
		Short:   "write a configuration to begin with",
		Long: `Writes a commented configuration to a new file, farm.yaml unless FILE names another: one endpoint,
and one route from the gateway to NATS or Kafka. agrimill validate accepts it once the environment
variables that it names are set, such as those with the credentials. A file with credentials in an
address is readable by you alone.

On a terminal, it asks for what no flag gives; Enter takes the suggestion in brackets. Elsewhere
it takes the suggestions.

Exit status: 0 written; 1 it failed; 2 wrong usage, or an answer that validate would refuse.`,
		Example: `  agrimill init
  agrimill init --external-id urn:example:dairy --receive doc:pdf,img:png --to kafka://127.0.0.1:9092 dairy.yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("expected at most one FILE")
			}
			return nil
		},
		ValidArgsFunction: configFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			c.file = "farm.yaml"
			if len(args) > 0 {
				c.file = args[0]
			}
			if p.isTerminal(p.stdin) && p.isTerminal(p.stderr) {
				if err := c.ask(cmd); err != nil {
					return err
				}
			}
			return c.write()
		},
	}
	for _, a := range c.answers {
		cmd.Flags().StringVar(&a.value, a.flag, a.value, a.usage)
	}
	return cmd
}

// maxAnswers bounds what is read from a terminal, in bytes.
const maxAnswers = 64 << 10

func (c *initCommand) ask(cmd *cobra.Command) error {
	var reader *bufio.Reader
	for _, a := range c.answers {
		if cmd.Flags().Changed(a.flag) {
			continue
		}
		if _, err := fmt.Fprintf(c.program.stderr, "%s [%s]: ", a.question, a.value); err != nil {
			return err
		}
		err := c.program.readStdin(cmd.Context(), func(stdin io.Reader) error {
			if reader == nil {
				reader = bufio.NewReader(io.LimitReader(stdin, maxAnswers))
			}
			line, err := reader.ReadString('\n')
			if line = strings.TrimSpace(line); line != "" {
				a.value = line
			}
			return err
		})
		if errors.Is(err, io.EOF) || cmd.Context().Err() != nil {
			c.program.notef("") // after the question
			return errors.New("nothing was written: not every question was answered")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *initCommand) of(flag string) string {
	for _, a := range c.answers {
		if a.flag == flag {
			return a.value
		}
	}
	return ""
}

func (c *initCommand) text() ([]byte, error) {
	parsed, err := template.New("init").Funcs(template.FuncMap{"quote": strconv.Quote}).Parse(initTemplate)
	if err != nil {
		return nil, err
	}
	for t := range strings.SplitSeq(c.of("receive"), ",") {
		if t = strings.TrimSpace(t); t != "" {
			c.types = append(c.types, t)
		}
	}
	if len(c.types) == 0 {
		return nil, usagef("--receive needs a message type")
	}
	values := map[string]any{
		"File": c.file, "BaseURL": c.of("base-url"), "TokenURL": c.of("token-url"), "ExternalID": c.of("external-id"), "Name": c.of("name"),
		"Types": c.types, "NATS": c.of("to"), "Broker": "NATS JetStream",
	}
	switch scheme, rest, _ := strings.Cut(c.of("to"), "://"); scheme {
	case "kafka":
		values["Brokers"], values["Broker"] = strings.Split(rest, ","), "Kafka"
	case "nats", "tls", "ws", "wss":
	default:
		return nil, usagef("--to must begin with nats://, tls:// or kafka://, not %q", c.of("to"))
	}
	var out bytes.Buffer
	err = parsed.Execute(&out, values)
	return out.Bytes(), err
}

// write writes the file, unless validate would refuse it, and says what comes next.
func (c *initCommand) write() error {
	text, err := c.text()
	if err != nil {
		return err
	}
	if _, err := config.Parse(c.file, text, config.Options{Env: c.program.env, AllowMissing: true}); err != nil {
		if problems := (*config.Problems)(nil); errors.As(err, &problems) { // warnings are about a file that there is
			problems.List = slices.DeleteFunc(problems.List, func(p config.Problem) bool { return p.Severity == config.SeverityWarning })
		}
		return invalid(err)
	}
	mode, private := os.FileMode(0o644), ""
	if c.secret() {
		mode, private = 0o600, ", readable by you alone: an address in it has credentials"
	}
	err = create(c.file, mode, func(to io.Writer) error {
		_, err := to.Write(text)
		return err
	})
	if errors.Is(err, os.ErrExist) {
		return usagef("%s exists, and nothing was written: name another FILE", cell(c.file))
	}
	if err != nil {
		return err
	}
	name := quote(c.file)
	_, err = fmt.Fprintf(c.program.stdout, "%s written%s. Next:\n%s  agrimill validate %s\n  agrimill check %s\n  agrimill run %s\n", name, private, c.missing(text), name, name, name)
	return err
}

func (c *initCommand) secret() bool {
	return slices.ContainsFunc([]string{"base-url", "token-url", "to"}, func(flag string) bool { return strings.Contains(c.of(flag), "@") })
}

func (c *initCommand) missing(text []byte) string {
	var lines strings.Builder
	for _, name := range []string{"BASE_URL", "TOKEN_URL", "CLIENT_ID", "CLIENT_SECRET", "APPLICATION_ID", "SOFTWARE_VERSION_ID"} {
		name = "AGRIMILL_" + name
		if bytes.Contains(text, []byte("${"+name+"}")) && c.program.env(name) == "" {
			fmt.Fprintf(&lines, "  export %s=…\n", name)
		}
	}
	return lines.String()
}
