package subscriber

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/subscriber/internal/core"
)

// askAgain is how long after it was asked a route is asked again whether what it has stored survives a power cut.
const askAgain = time.Second

// hold has the confirmation of it, which its handler is about to ack, wait as stored says. s.mu is held.
func (s *Subscriber) hold(sub *subscription, it *core.Item, stored *msgctx.Hold) {
	if stored == nil || stored.Horizon == nil {
		return
	}
	if sub.horizon == nil || sub.horizon.Owner != any(stored.Horizon) {
		sub.horizon = &core.Horizon{After: stored.Horizon.After, Owner: stored.Horizon}
	}
	s.core.Stored(s.now(), it, sub.horizon, stored.Began.Sub(s.clock.began), stored.Records)
}

// tenantNames are those of tenants whose IDs are written as usual.
type tenantNames map[string]*core.Names

// of returns the names of m.
func (t tenantNames) of(m *core.Message, index int32) *core.Names {
	d := ownerOf(m)
	if endpoint, message := textOf(d.IDs[index]); d.endpoint != endpoint || d.messages[index] != message {
		return &core.Names{Tenant: d.tenant, Endpoint: d.endpoint, Message: d.messages[index]}
	}
	if len(t) > maxTenantNames {
		clear(t)
	}
	n := t[d.tenant]
	if n == nil {
		n = &core.Names{Tenant: d.tenant}
		t[d.tenant] = n
	}
	return n
}

// maxTenantNames is of how many tenants the names are kept to be used again.
const maxTenantNames = 10_000

// textOf returns how IDs are written as a rule.
func textOf(id core.ID) (endpoint, message string) {
	const uuidLen = 36
	var room [2 * uuidLen]byte
	text := string(appendUUID(appendUUID(room[:0], uuid.UUID(id[:16])), uuid.UUID(id[16:])))
	return text[:uuidLen], text[uuidLen:]
}

// survival is the answer about confirmations that wait.
type survival int

const (
	survives survival = iota
	notYet
	mayBeLost
)

// askSynced asks about confirmations that are due, and sends those of what survives a power cut. What may be lost comes again.
func (s *Subscriber) askSynced(due []*core.Hold) {
	answers := make([]survival, len(due))
	var lost int
	var reason error
	for i, hold := range due {
		began, acked := hold.Stored()
		hold.Horizon().Owners(func(owner any) {
			is, err := owner.(*msgctx.Horizon).Survives(s.clock.time(began), s.clock.time(acked))
			switch {
			case err != nil:
				answers[i], reason = mayBeLost, err
			case !is:
				answers[i] = max(answers[i], notYet)
			}
		})
		switch answers[i] {
		case survives:
			hold.Record()
		case mayBeLost:
			lost += hold.Len()
		}
	}
	if lost > 0 {
		s.stats.possiblyLost.Add(int64(lost))
		s.logger.Error("messages that were stored may be lost; they are stored again", reason, watermill.LogFields{"count": lost})
	}
	s.mu.Lock()
	defer s.unlock()
	if s.ctx.Err() != nil {
		return
	}
	now, at := s.now(), time.Now()
	for i, hold := range due {
		switch answers[i] {
		case survives:
			s.core.Survives(now, hold, func(id core.ID, n *core.Names, c core.Confirmation) {
				endpoint, message := n.Endpoint, n.Message
				if message == "" {
					endpoint, message = textOf(id)
				}
				s.confirmer.add(at, n.Tenant, confirmation{c, endpoint, message})
			})
		case notYet:
			s.core.NotYet(now, hold, askAgain)
		case mayBeLost:
			s.core.MayBeLost(now, hold)
		}
	}
	s.confirmer.pump(at)
}
