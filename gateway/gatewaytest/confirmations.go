package gatewaytest

import (
	"net/http"

	"github.com/agrimill/agrimill/gateway"
)

// POST /confirmations (confirmMessages).
//
// Implements: the tenant header (400, 403); at least one confirmation, each with
// two UUIDs (otherwise 400, and nothing takes effect); 202 without a body; separate
// confirmations of the same message at several endpoints; the time between 202 and
// effect (Config.ConfirmationLag); repeated confirmations, which are counted and have
// no effect. Their number is not limited.
// A pair the application never had in the tenant is ignored and counted
// (Server.UnknownConfirmations), or answered 400 with Config.StrictConfirmations.

func (s *Server) handleConfirm(w http.ResponseWriter, r *request) error {
	tenantID, confirmations, err := s.readConfirmations(r)
	if err != nil {
		return err
	}
	if err := s.confirm(r.app, tenantID, confirmations); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// readConfirmations returns the tenant and the confirmations of a request, with IDs in their canonical form.
func (s *Server) readConfirmations(r *request) (string, []gateway.MessageConfirmation, error) {
	tenantID, err := s.uuidHeader(r, gateway.KeyTenantID)
	if err != nil {
		return "", nil, err
	}
	var body gateway.ConfirmMessagesRequest
	if err := readJSON(r.Request, 64<<20, http.StatusBadRequest, &body); err != nil {
		return "", nil, err
	}
	if len(body.Confirmations) == 0 {
		return "", nil, badRequest("confirmations must have at least one item")
	}
	for n := range body.Confirmations {
		c := &body.Confirmations[n]
		var message, endpoint bool
		c.MessageID, message = canonicalUUID(c.MessageID)
		c.EndpointID, endpoint = canonicalUUID(c.EndpointID)
		switch {
		case !message:
			return "", nil, badRequest("confirmations[%d].message_id is missing or not a UUID", n)
		case !endpoint:
			return "", nil, badRequest("confirmations[%d].endpoint_id is missing or not a UUID", n)
		}
	}
	return tenantID, body.Confirmations, nil
}

func (s *Server) confirm(app *Application, tenantID string, confirmations []gateway.MessageConfirmation) error {
	s.mu.Lock()
	confirmed, hooks, err := s.confirmAllLocked(app, tenantID, confirmations)
	s.mu.Unlock()
	for _, e := range confirmed {
		for _, hook := range hooks {
			hook(e)
		}
	}
	return err
}

// confirmAllLocked returns the entries after the confirmation if there are hooks.
func (s *Server) confirmAllLocked(app *Application, tenantID string, confirmations []gateway.MessageConfirmation) ([]LedgerEntry, []func(LedgerEntry), error) {
	var t *tenant
	if s.replay == nil { // the tenants of a recording are not here
		var err error
		if t, err = s.tenantLocked(app, tenantID, ""); err != nil {
			return nil, nil, err
		}
	}
	entries := make([]*entry, 0, len(confirmations))
	unknown := 0
	for _, c := range confirmations {
		e := s.lookupLocked(app, t, c)
		switch {
		case e != nil:
			entries = append(entries, e)
		case s.cfg.StrictConfirmations:
			s.ledger.unknown++
			return nil, nil, badRequest("message %s for endpoint %s does not exist", c.MessageID, c.EndpointID)
		default:
			unknown++
		}
	}
	s.ledger.unknown += unknown
	hooks := s.ledger.hooks
	var confirmed []LedgerEntry
	now := s.clock.now()
	s.applyLagLocked(now)
	for _, e := range entries {
		s.confirmLocked(e, now)
		if len(hooks) > 0 {
			confirmed = append(confirmed, e.snapshot())
		}
	}
	s.compactLocked(&app.feed)
	s.changedLocked()
	return confirmed, hooks, nil
}

// UnknownConfirmations counts confirmations of pairs that the application never had in the tenant.
func (s *Server) UnknownConfirmations() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.unknown
}
