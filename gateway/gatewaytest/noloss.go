package gatewaytest

import (
	"fmt"
	"strings"
)

// maxNamedLosses is how many lost messages a failed test names.
const maxNamedLosses = 10

// NoLoss fails the test if the application has confirmed a message that is not stored, or if no message was sent to any
// endpoint. It holds at any time, with messages on their way and in outages; call [Server.WaitConfirmed] first if all has
// to be stored.
//
// stored reports whether the application has stored a message, which it tells by any field of the entry: the filename, the
// context ID, the digest. It is called for each confirmed message at each receiving endpoint, with no lock held; the chunks
// of a split payload have an entry each, and the digest of the whole in PayloadSHA256.
func (s *Server) NoLoss(tb TB, stored func(LedgerEntry) bool) {
	tb.Helper()
	entries := s.Ledger()
	if len(entries) == 0 {
		tb.Fatalf("gatewaytest: NoLoss: nothing was sent to any endpoint")
		return
	}
	var names []string
	lost := 0
	for _, e := range entries {
		if !e.Confirmed() || stored(e) {
			continue
		}
		if lost++; lost <= maxNamedLosses {
			names = append(names, fmt.Sprintf("message %s of type %s, file %q, %d bytes, chunk %d of %d, at endpoint %s",
				e.MessageID, e.MessageType, e.Filename, e.Size, e.Chunk+1, e.Chunks, e.EndpointID))
		}
	}
	if lost > 0 {
		tb.Fatalf("gatewaytest: %d of %d messages were confirmed and are not stored:\n%s", lost, len(entries), strings.Join(names, "\n"))
	}
}
