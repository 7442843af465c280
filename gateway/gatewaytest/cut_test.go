package gatewaytest

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// A stream that notices the cut before its connection is closed does not end well: the
// client would use the connection again, for a request that is then lost.
func TestCutStreamBreaks(t *testing.T) {
	s := New(t, Config{})
	client := s.HTTPClient()
	defer client.CloseIdleConnections()
	req := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, s.BaseURL()+"/events", http.NoBody))(t)
	req.Header.Set("Authorization", "Bearer "+s.IssueToken(s.Application()))
	res := testkit.Must(client.Do(req))(t)
	defer func() { _ = res.Body.Close() }()
	s.mu.Lock()
	for _, st := range s.streamsLocked() { // as CutStreams does, first
		st.open = false
		st.notify()
	}
	s.mu.Unlock()
	if _, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("read: %v, want %v", err, io.ErrUnexpectedEOF)
	}
}
