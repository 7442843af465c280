package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agrimill/agrimill/router"
)

const (
	// maxGrouped is how many messages of the queue are grouped, the oldest ones.
	maxGrouped = 20_000
	// maxGroups is how many groups are listed, the largest ones.
	maxGroups = 100
	// maxPattern is the longest pattern of a reason, in bytes.
	maxPattern = 300
)

// PoisonGroups is the response to GET /api/poison/groups: the messages of the queue by route,
// message type and reason.
type PoisonGroups struct {
	// Groups are the largest groups, the largest one first.
	Groups []PoisonGroup `json:"groups"`
	// Messages is how many messages were looked at. With Partial there are more.
	Messages int  `json:"messages"`
	Partial  bool `json:"partial,omitempty"`
}

// PoisonGroup is what messages with the same route, class, message type and kind of reason have in
// common.
type PoisonGroup struct {
	// ID is the value of group in GET /api/poison.
	ID    string `json:"id"`
	Count int    `json:"count"`
	Route string `json:"route,omitempty"`
	Class string `json:"class,omitempty"`
	// Reason is redacted, with … for what differs between messages: numbers, IDs and quoted texts.
	Reason      string `json:"reason,omitempty"`
	MessageType string `json:"message_type,omitempty"`
	// First is the oldest first failure, and Last the latest one.
	First time.Time `json:"first,omitzero"`
	Last  time.Time `json:"last,omitzero"`
	// Foreign says that no router wrote the messages, so they cannot be replayed.
	Foreign bool `json:"foreign,omitempty"`
}

// varying is what differs between the reasons of messages that failed for the same one.
var varying = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'[^']*'|[0-9A-Fa-f]{8}-[0-9A-Fa-f-]{27}|[0-9][0-9A-Za-z.:_-]*`)

// groupOf returns the group of a message, with a count of one.
func groupOf(r PoisonedRecord) PoisonGroup {
	g := PoisonGroup{Count: 1, Route: r.Route, Class: r.Class, MessageType: r.MessageType, First: r.First, Last: r.Last, Foreign: r.Foreign}
	g.Reason = capText(varying.ReplaceAllString(r.Reason, "…"), maxPattern)
	foreign := ""
	if g.Foreign {
		foreign = "foreign"
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{g.Route, g.Class, g.MessageType, g.Reason, foreign}, "\x00")))
	g.ID = hex.EncodeToString(sum[:8])
	return g
}

// GroupPoisoned returns the 100 largest groups of messages, the largest one first.
func GroupPoisoned(records iter.Seq[PoisonedRecord]) PoisonGroups {
	groups := make(map[string]*PoisonGroup)
	for r := range records {
		g := groupOf(r)
		known := groups[g.ID]
		if known == nil {
			groups[g.ID] = &g
			continue
		}
		known.Count++
		known.First = earlier(known.First, g.First)
		if g.Last.After(known.Last) {
			known.Last = g.Last
		}
	}
	found := PoisonGroups{Groups: []PoisonGroup{}}
	for _, g := range groups {
		found.Groups = append(found.Groups, *g)
	}
	slices.SortFunc(found.Groups, func(a, b PoisonGroup) int {
		return cmp.Or(b.Count-a.Count, a.First.Compare(b.First), strings.Compare(a.ID, b.ID))
	})
	found.Groups = found.Groups[:min(len(found.Groups), maxGroups)]
	return found
}

// groupQueue groups the oldest messages of a queue, those that the filter selects.
func groupQueue(ctx context.Context, store router.PoisonStore, filter poisonFilter) (groups PoisonGroups, err error) {
	partial, looked := false, 0
	groups = GroupPoisoned(func(yield func(PoisonedRecord) bool) {
		for poisoned, failed := range store.Messages(ctx) {
			if err, partial = failed, looked == maxGrouped; err != nil || partial {
				return
			}
			looked++
			if record := NewPoisonedRecord(poisoned); filter.match(record) && !yield(record) {
				return
			}
		}
	})
	groups.Messages, groups.Partial = looked, partial
	return groups, err
}

func (s *Server) poisonGroups(r *http.Request) (any, error) {
	return s.list(r, func(ctx context.Context, store router.PoisonStore, filter poisonFilter) (any, error) {
		return groupQueue(ctx, store, filter)
	})
}

// poisonFilter selects messages of a page: those of a group, and those that have a text in what
// is shown of them, of a tenant and an endpoint. Case does not matter.
type poisonFilter struct{ group, text, tenant, endpoint string }

func (f poisonFilter) match(r PoisonedRecord) bool {
	if f.tenant != "" && !strings.EqualFold(f.tenant, r.Tenant) || f.endpoint != "" && !strings.EqualFold(f.endpoint, r.Endpoint) {
		return false
	}
	if f.group != "" && groupOf(r).ID != f.group {
		return false
	}
	if f.text == "" {
		return true
	}
	text := strings.ToLower(f.text)
	return slices.ContainsFunc([]string{r.ID, r.Route, r.Topic, r.Reason, r.Class, r.MessageType, r.Tenant, r.Endpoint, r.Filename},
		func(field string) bool { return strings.Contains(strings.ToLower(field), text) })
}
