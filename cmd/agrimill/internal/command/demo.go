package command

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/internal/demo"
	"github.com/agrimill/agrimill/internal/farmfile"
)

const (
	// demoTerminal is an endpoint of the application that files can be sent from.
	demoTerminal = "urn:agrimill:demo:terminal"
	// demoToken is for replays on the page. It need not be secret: who reaches the page is on this machine,
	// and there is nothing but the demo behind it.
	demoToken = "only-for-the-demo"
	// demoHealthy is how long all is well before --break, and demoBroken how long something is broken then.
	demoHealthy = 10 * time.Second
	demoBroken  = time.Minute
	// demoLook is how often the demo looks at the start whether the pipeline has connected.
	demoLook = 100 * time.Millisecond
	// demoFinish is how long nothing may be confirmed at the end before the demo stops waiting.
	demoFinish = 30 * time.Second
	// demoOnce bounds what comes before that with --once: the start, and sending.
	demoOnce = time.Minute
	// maxDemoRate is the largest --rate.
	maxDemoRate = 1000
)

//go:embed demo.yaml.tmpl
var demoTemplate string

type demoCommand struct {
	run        runCommand
	fault      string
	poison     bool
	once       bool
	rate       float64
	files      string
	world      *demo.World
	pipeline   admin.Source
	program    *program
	faults     []demo.Fault
	samples    []demo.File // those of --files
	unfinished int         // messages that were not confirmed in time
	report     demo.Report // of --once
}

func newDemoCommand(p *program) *cobra.Command {
	c := &demoCommand{program: p, faults: demo.Faults()}
	cmd := &cobra.Command{
		Use:     "demo",
		GroupID: groupOther,
		Short:   "run everything in one process, with sample farms, to look around",
		Long: `Runs a gateway, NATS, three farms whose machines send files, and the pipeline that stores them,
all on this machine and in this process, with the status page. Nothing has to be installed, and
nothing remains: Ctrl-C sends no more files, waits until everything is confirmed, and removes what
was stored. The farms are invented.

The pipeline is a file, demo.yaml unless --config names another, which must not exist. Every
command takes it with --config, and agrimill reloads it when it changes. It is removed at the end;
the file of a killed demo is replaced.

--break breaks a part after 10 seconds and repairs it after a minute; Enter does either at
once, and breaks it again later. At the end, it is repaired first.

  nats           the NATS server stops, and starts again with its data
  gateway        the gateway stops, and starts again with its data
  confirmations  the gateway answers confirmations with 503
  payloads       downloads of files above 32 KiB are answered with 503

--once sends each file a single time from one machine, waits until all are confirmed, and compares
what NATS has with what was sent. The last line begins with OK or FAILED, and has the counts.

Exit status: 0 stopped, and everything was confirmed; 1 it failed; 2 wrong usage; 3 stopped with
unconfirmed messages, because no confirmation had come for 30 seconds.`,
		Example: `  agrimill demo
  agrimill demo --break nats
  agrimill demo --poison --rate 20
  agrimill demo --files .
  agrimill demo --once --files .`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.main(cmd.Context()) },
	}
	flags := cmd.Flags()
	var names []string
	for _, f := range c.faults {
		names = append(names, f.Name)
	}
	choice(cmd, &c.fault, "break", "`PART` to break for a while: "+strings.Join(names, ", "), names...)
	flags.BoolVar(&c.poison, "poison", false, "also send files that no route can store, for the poison queue")
	flags.BoolVar(&c.once, "once", false, "send each file once, check every byte that is stored, and end")
	flags.Float64Var(&c.rate, "rate", 2, "`FILES` per second, 0 to 1000; 0 sends none")
	flags.StringVar(&c.files, "files", "", "send the files of this `DIRECTORY`, up to 31 MiB each, over and over, instead of samples")
	completeFlag(cmd, "files", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs))
	flags.StringVar(&c.run.file, "config", "demo.yaml", "`FILE` for the configuration, which must not exist")
	flags.StringVar(&c.run.address, "address", admin.DefaultAddress, "`ADDRESS` of the status page; port 0 picks a free one")
	choice(cmd, &c.run.logLevel, "log-level", "`LEVEL` of the pipeline's log on stderr: debug, info, warn (default) or error", "debug", "info", "warn", "error")
	return cmd
}

func (c *demoCommand) main(ctx context.Context) (err error) {
	if !(c.rate >= 0 && c.rate <= maxDemoRate) { // rejects NaN, too
		return usagef("--rate must be 0 to %d files per second", maxDemoRate)
	}
	if c.once && (c.poison || c.fault != "") {
		return usagef("--once cannot be combined with --break and --poison")
	}
	if c.run.address == config.AdminOff {
		return usagef("--address: the demo needs its status page")
	}
	if c.run.logLevel == "" {
		c.run.logLevel = "warn"
	}
	asked := ctx
	if c.once {
		defer func() { err = c.lastLine(err) }()
		limited, cancel := context.WithTimeoutCause(ctx, demoOnce, fmt.Errorf("it took longer than %s", demoOnce))
		defer cancel()
		ctx = limited
	}
	if c.files != "" {
		var skipped []string
		if c.samples, skipped, err = demo.ReadFolder(c.files); err != nil {
			return fmt.Errorf("--files: %w", err)
		}
		for _, name := range skipped {
			c.program.notef("--files: skipped %s: not a visible file directly in the directory", cell(name))
		}
	}
	if c.world, err = demo.Start(demo.Options{Files: c.samples, Poison: c.poison}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.check(context.WithoutCancel(ctx)), c.world.Close()) }()
	if err := c.writeConfig(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(c.run.file)) }()
	return c.perform(ctx, asked)
}

// perform runs the pipeline and works until ctx ends, or all is done. Whoever asked for --once may end the wait for confirmations.
func (c *demoCommand) perform(ctx, asked context.Context) (err error) {
	// The pipeline outlasts ctx: it confirms what was sent before that.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	address := make(chan string, 1)
	c.run.listening = func(a string, shows admin.Source) { c.pipeline = shows; address <- a }
	c.run.watch, c.run.quiet = defaultWatch, true
	ended := make(chan error, 1)
	go func() { ended <- c.run.run(running, c.program) }() // ends with running
	select {
	case err := <-ended:
		return err
	case a := <-address:
		if !c.once {
			c.introduce(a)
		}
	}
	busy, rest := context.WithCancel(ctx)
	defer rest()
	worked := make(chan error, 1)
	go func() { // ends with busy
		worked <- c.work(busy)
		rest()
	}()
	select {
	case err = <-ended: // for a reason of its own
		rest()
		return errors.Join(err, <-worked)
	case <-busy.Done():
	}
	err = <-worked
	switch {
	case !c.once:
		err = errors.Join(err, c.finish(running))
	case len(c.report.Files) > 0:
		err = errors.Join(err, c.finish(asked))
	}
	stop()
	end := <-ended
	if status, ok := errors.AsType[*statusError](end); ok && status.status == statusUnfinished && err == nil && c.unfinished == 0 {
		end = nil // what is open are copies: the gateway has every confirmation
	}
	if err = errors.Join(err, end); err == nil && c.unfinished > 0 && !c.once {
		return exitWith(statusUnfinished)
	}
	return err
}

// work sends files and breaks what is to be broken, until ctx ends. Then all is well again.
func (c *demoCommand) work(ctx context.Context) (err error) {
	if c.once {
		if c.started(ctx); ctx.Err() != nil {
			return fmt.Errorf("the pipeline has not connected: %w", context.Cause(ctx))
		}
		c.report, err = c.world.SendOnce(ctx)
		return err
	}
	sent := make(chan struct{})
	go func() { // ends with ctx
		defer close(sent)
		c.started(ctx)
		c.world.Send(ctx, c.rate)
	}()
	if i := slices.IndexFunc(c.faults, func(f demo.Fault) bool { return f.Name == c.fault }); i >= 0 {
		err = c.breakAndRepair(ctx, c.faults[i])
	}
	<-sent
	return err
}

// started waits until the pipeline has connected to everything, or ctx ends: what is sent before that has to wait, and the first
// thing that a demo shows were an outage.
func (c *demoCommand) started(ctx context.Context) {
	tick := time.NewTicker(demoLook)
	defer tick.Stop()
	for {
		now := c.pipeline.Snapshot()
		away := slices.ContainsFunc(now.Sinks, func(s admin.Sink) bool { return !s.Up })
		if !away && now.Gateway.State == admin.GatewayConnected {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// breakAndRepair breaks something, and repairs it, in turn.
func (c *demoCommand) breakAndRepair(ctx context.Context, fault demo.Fault) error {
	enter := c.lines(ctx)
	// turn waits until it is time, or for Enter; false: ctx has ended.
	turn := func(d time.Duration) bool {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
		case <-enter:
		}
		return true
	}
	for healthy := demoHealthy; turn(healthy); healthy = math.MaxInt64 {
		repair := fault.Break(c.world)
		c.printf("BROKEN    %s.", fault.Broken)
		turn(demoBroken)
		if err := repair(); err != nil {
			return err
		}
		c.printf("REPAIRED  %s.", fault.Repaired)
	}
	return nil
}

func (c *demoCommand) lines(ctx context.Context) <-chan struct{} {
	lines := make(chan struct{})
	go func() { // ends with stdin, or with the process
		_ = c.program.readStdin(ctx, func(stdin io.Reader) error {
			for scanner := bufio.NewScanner(stdin); scanner.Scan(); {
				select {
				case lines <- struct{}{}:
				case <-ctx.Done():
				}
			}
			return nil
		})
	}()
	return lines
}

// finish waits until everything is confirmed. The error is that ctx has ended before.
func (c *demoCommand) finish(ctx context.Context) error {
	if c.once {
		c.printf("Waiting until everything is confirmed.")
	} else {
		c.printf("\nNo more files are sent. Waiting until everything is confirmed; a second Ctrl-C does not wait.")
	}
	n, err := c.confirmed(ctx)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s not confirmed: %w", plural(n, "message"), context.Cause(ctx))
	case err != nil:
		c.unfinished = n
		c.printf("%s not confirmed, and nothing more in %s.", plural(n, "message"), demoFinish)
	default:
		where := "stored and confirmed"
		c.pipeline.CountPoisoned(ctx)
		if depth := c.pipeline.Snapshot().Poison.Depth; depth != nil && *depth > 0 {
			where = fmt.Sprintf("confirmed; %d in the poison queue, the others stored", *depth)
		}
		c.printf("%s sent, all of them %s.", plural(n, "message"), where)
	}
	return nil
}

// confirmed waits until everything is confirmed, and returns how much that is. The error is that ctx has ended, or that nothing more
// was confirmed in the time for that; then it is how much is not.
func (c *demoCommand) confirmed(ctx context.Context) (n int, err error) {
	for wait, left := time.Duration(0), math.MaxInt; ; wait, left = demoFinish, n { // the first look counts
		limited, cancel := context.WithTimeout(ctx, wait)
		n, err = c.world.WaitConfirmed(limited)
		cancel()
		if err == nil || ctx.Err() != nil || n >= left {
			return n, err
		}
	}
}

func (c *demoCommand) check(ctx context.Context) error {
	if len(c.report.Files) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, demoFinish)
	defer cancel()
	err := c.world.Check(ctx, &c.report)
	c.printf("")
	table := c.program.table("FILE", "MESSAGE TYPE", "BYTES", "CHUNKS", "SUBJECT", "CONFIRMED")
	for _, f := range c.report.Files {
		table.row(f.Name, f.MessageType, len(f.Data), f.Chunks, f.Subject, f.Confirmed)
	}
	return errors.Join(err, table.Flush())
}

// lastLine ends what --once says, whatever has failed.
func (c *demoCommand) lastLine(err error) error {
	line, ok := c.report.Line(err)
	c.printf("%s", line)
	if err == nil && !ok {
		return exitWith(statusFailed)
	}
	return err
}

func (c *demoCommand) writeConfig(ctx context.Context) (err error) {
	parsed, err := template.New("demo").Funcs(template.FuncMap{"quote": strconv.Quote}).Parse(demoTemplate)
	if err != nil {
		return err
	}
	shapes := "{teamset|none}.shapes"
	if c.poison {
		shapes = "{teamset}.shapes"
	}
	if c.leftBehind(ctx) {
		c.program.notef("%s is from a demo that was killed: it is replaced", cell(c.run.file))
		if err := os.Remove(c.run.file); err != nil {
			return err
		}
	}
	err = create(c.run.file, 0o600, func(to io.Writer) error { // it has the client secret
		return parsed.Execute(to, map[string]any{
			"Gateway": c.world.Gateway, "NATS": c.world.NATS, "Farms": c.world.Farms, "Types": farmfile.MessageTypes(), "Large": c.large(),
			"ShapesTopic": shapes, "Terminal": demoTerminal, "File": c.run.file, "Address": c.run.address, "Token": demoToken,
		})
	})
	if errors.Is(err, os.ErrExist) {
		return usagef("%s exists, from a demo that runs or from elsewhere: name another file with --config", cell(c.run.file))
	}
	return err
}

// leftBehind reports whether the file is of a demo that is gone: it begins as one of a demo does, and nothing listens where its gateway was.
func (c *demoCommand) leftBehind(ctx context.Context) bool {
	first, _, _ := strings.Cut(demoTemplate, "\n")
	content, err := os.ReadFile(c.run.file)
	if err != nil || !strings.HasPrefix(string(content), first+"\n") {
		return false
	}
	cfg, err := config.Load(c.run.file, config.Options{Env: c.program.env})
	if err != nil {
		return false
	}
	at, err := url.Parse(cfg.Gateway.BaseURL)
	if err != nil {
		return false
	}
	// A signal would end the look, not the demo whose file it is.
	conn, err := (&net.Dialer{Timeout: demoFinish}).DialContext(context.WithoutCancel(ctx), "tcp", at.Host)
	if err == nil {
		_ = conn.Close()
	}
	return err != nil
}

// large are the types of files that the gateway splits.
func (c *demoCommand) large() (types []string) {
	if len(c.samples) == 0 {
		return []string{farmfile.DefaultMessageType}
	}
	for _, file := range c.samples {
		if len(file.Data) > demo.ChunkSize && !slices.Contains(types, file.MessageType) {
			types = append(types, file.MessageType)
		}
	}
	return types
}

func (c *demoCommand) introduce(address string) {
	file := quote(c.run.file)
	var farms []string
	for _, farm := range c.world.Farms {
		farms = append(farms, farm.Name)
	}
	at := ""
	if address != admin.DefaultAddress {
		at = " --admin " + address
	}
	c.printf(`agrimill demo: %s send %g files per second.

  page      http://%s (to replay: the token %s)
  pipeline  %s

Five things to try, in a second terminal in this directory:

  1. Is all right?             agrimill status%s
  2. What became of a file?    agrimill trace%s lange_breite --limit 1
  3. Who sends what?           agrimill tenants --config %s
  4. Send a file of your own:  agrimill send --config %s --from %s --publish FILE
  5. Break something:          Ctrl-C here, then agrimill demo --break nats, or --poison
`, strings.Join(farms, ", "), c.rate, address, demoToken, file, at, at, file, file, demoTerminal)
	if c.fault != "" {
		c.printf("--break %s begins in %s and ends %s later; Enter does either at once.", c.fault, demoHealthy, demoBroken)
	}
	c.printf("Ctrl-C ends the demo and removes what it stored.")
}

// printf writes a line to stdout. There is nowhere to report that writing failed.
func (c *demoCommand) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(c.program.stdout, format+"\n", args...)
}
