package peakmem

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

const (
	typeFile   = "iso:11783:-10:taskdata:zip"
	roleEnv    = "AGRIMILL_PEAKMEM_ROLE"
	roleServer = "gateway"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) == roleServer {
		serve(os.Stdin, os.Stdout)
		return
	}
	goleak.VerifyTestMain(m)
}

// hello is the first line that the gateway's process writes.
type hello struct {
	BaseURL, TokenURL, ClientID, ClientSecret string
	Tenant, Sender                            string
}

// command asks the gateway's process for something.
type command struct {
	// Send makes it send a payload of that many bytes.
	Send int64
	// Last asks for the payload that it received last, instead.
	Last bool
}

// answer is about one payload.
type answer struct {
	Size   int64
	SHA256 [sha256.Size]byte
	Error  string
}

// serve is the gateway's process. It ends when in does.
func serve(in io.Reader, out io.Writer) {
	s, err := gatewaytest.Start(gatewaytest.Config{ReleaseConfirmed: true, FileTypes: []string{typeFile}})
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return
	}
	defer s.Close()
	types := []string{typeFile}
	sender := s.AddEndpoint(gatewaytest.EndpointConfig{Send: types})
	s.AddEndpoint(gatewaytest.EndpointConfig{Receive: types, Subscribe: types})
	cfg := s.ClientConfig()
	enc, dec := json.NewEncoder(out), json.NewDecoder(in)
	_ = enc.Encode(hello{
		BaseURL: cfg.BaseURL, TokenURL: cfg.TokenURL, ClientID: cfg.ClientID, ClientSecret: string(cfg.ClientSecret),
		Tenant: s.Tenant(), Sender: sender.ID,
	})
	for {
		var c command
		if dec.Decode(&c) != nil {
			return
		}
		var a answer
		if !c.Last {
			if _, err := s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: typeFile, Payload: generate(c.Send)}); err != nil {
				a.Error = err.Error()
			}
		}
		entries := s.Ledger()
		last := entries[len(entries)-1]
		a.Size, a.SHA256 = last.PayloadSize, last.PayloadSHA256
		_ = enc.Encode(a)
	}
}

// generate returns n bytes that do not compress.
func generate(n int64) []byte {
	out := make([]byte, n)
	_, _ = io.ReadFull(newSource(), out)
	return out
}

// newSource yields what generate returns, without end.
func newSource() io.Reader { return rand.NewChaCha8([32]byte{1}) }

// remote is the gateway as the client's process sees it.
type remote struct {
	testing.TB
	hello
	enc *json.Encoder
	dec *json.Decoder
}

func startGateway(tb testing.TB) *remote {
	tb.Helper()
	binary := testkit.Must(os.Executable())(tb)
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), roleEnv+"="+roleServer)
	cmd.Stderr = os.Stderr
	in := testkit.Must(cmd.StdinPipe())(tb)
	out := testkit.Must(cmd.StdoutPipe())(tb)
	testkit.NoError(tb, cmd.Start())
	tb.Cleanup(func() {
		_ = in.Close() // tells it to end
		if err := cmd.Wait(); err != nil {
			tb.Errorf("the gateway's process: %v", err)
		}
	})
	r := &remote{TB: tb, enc: json.NewEncoder(in), dec: json.NewDecoder(bufio.NewReader(out))}
	if err := r.dec.Decode(&r.hello); err != nil {
		tb.Fatalf("the gateway's process did not start: %v", err)
	}
	return r
}

func (r *remote) ask(c command) answer {
	r.Helper()
	var a answer
	testkit.NoError(r, r.enc.Encode(c))
	testkit.NoError(r, r.dec.Decode(&a))
	if a.Error != "" {
		r.Fatal(a.Error)
	}
	return a
}

func (r *remote) client() *gateway.Client {
	r.Helper()
	client := testkit.Must(gateway.New(gateway.Config{BaseURL: r.BaseURL, TokenURL: r.TokenURL, ClientID: r.ClientID, ClientSecret: gateway.Secret(r.ClientSecret)}))(r)
	r.Cleanup(func() { _ = client.Close() })
	return client
}
