package gatewaytest_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// preloaded is a server with n unconfirmed messages of 1 KiB.
func preloaded(b *testing.B, n int) (*gatewaytest.Server, *http.Client) {
	b.Helper()
	s := gatewaytest.New(b, gatewaytest.Config{})
	sender := s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{typeA}})
	s.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{typeA}, Subscribe: []string{typeA}})
	payload := payloadOf(1 << 10)
	for range n {
		if _, err := s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: typeA, Payload: payload}); err != nil {
			b.Fatal(err)
		}
	}
	client := s.HTTPClient()
	b.Cleanup(client.CloseIdleConnections)
	b.ReportAllocs()
	b.ResetTimer()
	return s, client
}

// One stream, read as fast as it comes.
func BenchmarkStream(b *testing.B) {
	s, client := preloaded(b, b.N)
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, s.BaseURL()+"/events", nil)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.IssueToken(s.Application()))
	res, err := client.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReaderSize(res.Body, 64<<10)
	for n := 0; n < b.N; {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			b.Fatal(err)
		}
		if line[0] == '\n' {
			n++
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// Confirmations, 100 a request, one request at a time.
func BenchmarkConfirm(b *testing.B) {
	s, client := preloaded(b, b.N)
	b.StopTimer()
	var bodies [][]byte
	var batch gateway.ConfirmMessagesRequest
	for n, e := range s.Ledger() {
		batch.Confirmations = append(batch.Confirmations, gateway.MessageConfirmation{MessageID: e.MessageID, EndpointID: e.EndpointID})
		if len(batch.Confirmations) == 100 || n == b.N-1 {
			body, err := json.Marshal(batch)
			if err != nil {
				b.Fatal(err)
			}
			bodies = append(bodies, body)
			batch.Confirmations = batch.Confirmations[:0]
		}
	}
	token := s.IssueToken(s.Application())
	b.StartTimer()
	for _, body := range bodies {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, s.BaseURL()+"/confirmations", bytes.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(gateway.KeyTenantID, s.Tenant())
		res, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusAccepted {
			b.Fatal(res.Status)
		}
	}
	if err := s.WaitConfirmed(b.Context(), b.N); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "confirmations/s")
}
