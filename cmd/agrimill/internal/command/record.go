package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// recordShutdown bounds how long the requests in progress may take to end.
const recordShutdown = 5 * time.Second

// maxRecording is how large a file may be, in bytes, that a replay takes.
const maxRecording = 256 << 20

func newRecordCommand(p *program) *cobra.Command {
	var baseURL, tokenURL, listen string
	var payloads bool
	cmd := &cobra.Command{
		Use:     "record FILE",
		GroupID: groupOther,
		Short:   "record what a gateway answers to a program, for a test",
		Long: `Passes requests on to a gateway, and writes what it answers, and when, to FILE, which must
not exist, until SIGINT or SIGTERM. "agrimill emulator --replay FILE" and Go tests (package
gatewaytest) play it back, so that a fault that was seen becomes a test.

The first line on stdout is a JSON object with base_url and token_url: what a program has to use
in place of the gateway's. Nothing else changes for it.

FILE has IDs, filenames and names of endpoints, but no secrets, tokens or payload URIs. It has the
size and digest of each payload, and the payloads themselves with --payloads. When FILE cannot be
written any more, or would be larger than 256 MiB, which a replay refuses, the command fails; the
recording up to then can be played.`,
		Example: `  agrimill record session.jsonl
  agrimill record --payloads --listen 127.0.0.1:0 session.jsonl`,
		Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			baseURL, tokenURL = cmp.Or(baseURL, p.env("AGRIMILL_BASE_URL")), cmp.Or(tokenURL, p.env("AGRIMILL_TOKEN_URL"))
			if baseURL == "" || tokenURL == "" {
				return usagef("the gateway is not specified: --base-url (or AGRIMILL_BASE_URL) and --token-url (or AGRIMILL_TOKEN_URL) are required")
			}
			if !isAddress(listen) {
				return usagef("--listen must be host:port, not %q", listen)
			}
			listener, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			defer listener.Close()
			file, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			config := gatewaytest.RecorderConfig{BaseURL: baseURL, TokenURL: tokenURL, To: file, Payloads: payloads}
			return closeRecording(file, p.record(cmd.Context(), config, listener))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&baseURL, "base-url", "", "`URL` of the gateway (default AGRIMILL_BASE_URL)")
	flags.StringVar(&tokenURL, "token-url", "", "`URL` of the token endpoint (default AGRIMILL_TOKEN_URL)")
	flags.StringVar(&listen, "listen", "127.0.0.1:8082", "`ADDRESS` for the program; port 0 picks a free one")
	flags.BoolVar(&payloads, "payloads", false, "keep the payloads")
	return cmd
}

// closeRecording keeps what was recorded before it failed: a replay reads up to there.
func closeRecording(file *os.File, err error) error {
	size, seekErr := file.Seek(0, io.SeekCurrent)
	if err = errors.Join(err, seekErr, file.Sync(), file.Close()); err == nil {
		return nil
	}
	if size == 0 {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return fmt.Errorf("%w; %s has what was recorded before", err, file.Name())
}

// failing calls stop when writing fails, or there is no room for it.
type failing struct {
	io.Writer
	stop func()
	room int // in bytes
}

// Write implements [io.Writer].
func (f *failing) Write(b []byte) (n int, err error) {
	if len(b) > f.room {
		err = errors.New("a replay takes no more than 256 MiB")
	} else {
		n, err = f.Writer.Write(b)
	}
	f.room -= n
	if err != nil {
		f.stop()
	}
	return n, err
}

// record serves a recorder until ctx ends or the recording cannot be written.
func (p *program) record(ctx context.Context, config gatewaytest.RecorderConfig, listener net.Listener) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	config.To = &failing{config.To, stop, maxRecording}
	recorder, err := gatewaytest.NewRecorder(config)
	if errors.Is(err, gatewaytest.ErrConfig) {
		return usagef("--base-url and --token-url (or AGRIMILL_BASE_URL and AGRIMILL_TOKEN_URL) must be absolute http or https addresses")
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, recorder.Close()) }()
	address := "http://" + listener.Addr().String()
	server := &http.Server{
		Handler: recorder, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		BaseContext: func(net.Listener) context.Context { return ctx }, // requests end with it
	}
	served := make(chan error, 1)
	go func() {
		defer stop()
		served <- server.Serve(listener)
	}()
	if err = p.writeLine(map[string]string{"base_url": address, "token_url": address + "/oauth/token"}); err == nil {
		p.notef("recording; Ctrl-C ends it")
		<-ctx.Done()
	}
	stop()
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordShutdown)
	defer cancel()
	if server.Shutdown(limit) != nil {
		err = errors.Join(err, server.Close())
	}
	if failed := <-served; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, failed)
	}
	return err
}
