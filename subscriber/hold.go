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

// names are what a confirmation needs that waits, beside its ID: the same for all of a tenant, unless the service writes IDs in
// another way.
type names struct {
	tenant   string
	endpoint string // empty: as in the ID
	messages []string
}

// hold has the confirmation of it, which its handler is about to ack, wait as stored says. s.mu is held.
func (s *Subscriber) hold(sub *subscription, it *core.Item, stored *msgctx.Hold) {
	if stored == nil || stored.Horizon == nil {
		return
	}
	if sub.horizon == nil || sub.horizon.Owner != any(stored.Horizon) {
		sub.horizon = &core.Horizon{After: stored.Horizon.After, Owner: stored.Horizon}
	}
	s.core.Stored(s.now(), it, sub.horizon, stored.Began.Sub(s.clock.began))
}

// tenantNames are the names of tenants whose IDs are as usual.
type tenantNames map[string]*names

// of returns the names of m.
func (t tenantNames) of(m *core.Message) any {
	const uuidLen = 36
	d := ownerOf(m)
	var room [2 * uuidLen]byte
	for i := range d.IDs {
		text := appendUUID(appendUUID(room[:0], uuid.UUID(d.IDs[i][:16])), uuid.UUID(d.IDs[i][16:]))
		if d.endpoint != string(text[:uuidLen]) || d.messages[i] != string(text[uuidLen:]) {
			return &names{d.tenant, d.endpoint, d.messages}
		}
	}
	if len(t) > maxTenantNames {
		clear(t)
	}
	n := t[d.tenant]
	if n == nil {
		n = &names{tenant: d.tenant}
		t[d.tenant] = n
	}
	return n
}

// maxTenantNames is of how many tenants the names are kept to be used again.
const maxTenantNames = 10_000

// confirmation returns the one that has waited.
func (n *names) confirmation(id core.ID, c core.Confirmation) confirmation {
	if n.endpoint != "" {
		return confirmation{c, n.endpoint, n.messages[c.Index]}
	}
	return confirmation{c, uuid.UUID(id[:16]).String(), uuid.UUID(id[16:]).String()}
}

// survival is the answer about a confirmation that waits.
type survival int

const (
	survives survival = iota
	notYet
	mayBeLost
)

// askSynced asks about confirmations that are due, and sends those of what survives a power cut. What may be lost comes again.
func (s *Subscriber) askSynced(due []core.Hold) {
	answers := make([]survival, len(due))
	var lost int
	var reason error
	for i := range due {
		began, acked := due[i].Stored()
		due[i].Horizon().Owners(func(owner any) {
			is, err := owner.(*msgctx.Horizon).Survives(s.clock.time(began), s.clock.time(acked))
			switch {
			case err != nil:
				answers[i], reason = mayBeLost, err
			case !is:
				answers[i] = max(answers[i], notYet)
			}
		})
		if answers[i] == mayBeLost {
			lost++
		}
	}
	if lost > 0 {
		s.stats.possiblyLost.Add(int64(lost))
		s.logger.Error("Messages that were stored may be lost; they are stored again", reason, watermill.LogFields{"count": lost})
	}
	for tenant, items := range s.settleSynced(due, answers) {
		s.confirmer.add(tenant, items...)
	}
}

// settleSynced takes in the answers about confirmations, and returns those that are to be sent, by tenant.
func (s *Subscriber) settleSynced(due []core.Hold, answers []survival) map[string][]confirmation {
	synced := make(map[string][]confirmation)
	s.mu.Lock()
	defer s.unlock()
	if s.ctx.Err() != nil {
		return nil
	}
	now := s.now()
	for i := range due {
		switch answers[i] {
		case survives:
			id, c, ok := s.core.Survives(now, &due[i])
			if !ok {
				continue
			}
			s.confirmer.expect(1)
			n := due[i].Names.(*names)
			synced[n.tenant] = append(synced[n.tenant], n.confirmation(id, c))
		case notYet:
			s.core.NotYet(now, &due[i], askAgain)
		case mayBeLost:
			s.core.MayBeLost(now, &due[i])
		}
	}
	return synced
}
