package journal

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agrimill/agrimill/gateway"
)

// Trace is what the journal knows about the messages that a query finds.
type Trace struct {
	Query string `json:"query"`
	// Since is from when on the journal is complete: what was received before may be missing, as is
	// what another instance received.
	Since time.Time `json:"since"`
	// Messages are the ones found, the newest first.
	Messages []Message `json:"messages"`
	// More is how many more there are, older than these.
	More int `json:"more,omitempty"`
}

// Message is what is known of one message: one delivery, or a file with the messages that carried it.
type Message struct {
	EventType   string   `json:"event_type,omitempty"`
	MessageType string   `json:"message_type,omitempty"`
	Tenant      string   `json:"tenant,omitempty"`
	Endpoint    string   `json:"endpoint,omitempty"`
	ContextID   string   `json:"context_id,omitempty"`
	Filename    string   `json:"filename,omitempty"`
	MessageIDs  []string `json:"message_ids,omitempty"`
	UUID        string   `json:"uuid,omitempty"`
	// Delivery is the place with the broker that it came from.
	Delivery string `json:"delivery,omitempty"`
	// Bytes is the size of its payload, -1 if unknown.
	Bytes int64 `json:"bytes"`
	// State is where it is now, in a few words.
	State string `json:"state"`
	// Unseen are the routes from the gateway, as they are now, that never saw it, and why; of the newest 200 messages of a trace only.
	Unseen []Unseen `json:"unseen,omitempty"`
	Events []Event  `json:"events"`
}

// Unseen is a route that never saw a message.
type Unseen struct {
	Route string `json:"route"`
	Why   string `json:"why"`
}

// Event is one thing that happened to a message.
type Event struct {
	Time  time.Time `json:"time"`
	Step  Step      `json:"step"`
	Route string    `json:"route,omitempty"`
	// MessageID says which of several messages it is about.
	MessageID string `json:"message_id,omitempty"`
	// Class and Text say why, Attempt and Delay when it is tried again. Of StepStored, Delay is how long the sink took.
	Class   string        `json:"class,omitempty"`
	Text    string        `json:"text,omitempty"`
	Attempt int           `json:"attempt,omitempty"`
	Delay   time.Duration `json:"delay_ns,omitempty"`
	// Place is where it was stored; empty if the sink does not tell.
	Place string `json:"place,omitempty"`
	// At is the same for programs; nil if the sink does not tell.
	At *Location `json:"at,omitempty"`
	// Bytes is the size of a payload that was fetched.
	Bytes int64 `json:"bytes,omitempty"`
	// Duplicate says that it had been stored there before.
	Duplicate bool `json:"duplicate,omitempty"`
}

// Location is where a sink stored a message: in a stream of JetStream, in a topic of Kafka, as an
// object, or at the gateway. What does not belong to that is zero.
type Location struct {
	Stream    string `json:"stream,omitempty"`
	Subject   string `json:"subject,omitempty"`
	Sequence  uint64 `json:"sequence,omitempty"`
	Topic     string `json:"topic,omitempty"`
	Partition int32  `json:"partition,omitempty"`
	Offset    int64  `json:"offset,omitempty"`
	// Key is that of the object with the payload.
	Key string `json:"key,omitempty"`
	// ContextID is that of the message at the gateway.
	ContextID string `json:"context_id,omitempty"`
}

// String says it in words; empty if there is none.
func (l *Location) String() string {
	switch {
	case l == nil:
		return ""
	case l.Stream != "":
		return fmt.Sprintf("%s in stream %s, sequence %d", l.Subject, l.Stream, l.Sequence)
	case l.Topic != "":
		return fmt.Sprintf("%s, partition %d, offset %d", l.Topic, l.Partition, l.Offset)
	case l.Key != "":
		return "object " + l.Key
	case l.ContextID != "":
		return "gateway, context ID " + l.ContextID
	}
	return ""
}

// Limits of a query.
const (
	// minPart is how long a part of an ID has to be to find it.
	minPart = 8
	// maxEvents is how many events of one message are returned, the newest ones.
	maxEvents = 500
	// maxMatches is how many entries a query may match, the newest ones, before others are searched
	// for that belong to them.
	maxMatches = 20_000
	// maxUnseen is of how many messages the routes are told that never saw them: with a hundred routes, those of 10,000 take
	// 300 MB.
	maxUnseen = 200
)

// LostQuery finds what brokers have lost, whatever its name.
const LostQuery = "lost"

// Only selects messages of one tenant, and received by one endpoint, by their IDs. Empty means any. What a route from a broker
// did has no endpoint.
type Only struct{ Tenant, Endpoint string }

func (o Only) takes(m Message) bool {
	return (o.Tenant == "" || strings.EqualFold(o.Tenant, m.Tenant)) && (o.Endpoint == "" || strings.EqualFold(o.Endpoint, m.Endpoint))
}

// Trace looks for messages: by context ID, message ID, or UUID, whole or from the beginning with at
// least eight characters; or by a part of the filename. Case does not matter. It returns at most
// limit messages, the newest ones. An empty query finds the newest of all.
func (j *Journal) Trace(query string, only Only, limit int) Trace {
	trace := Trace{Query: query, Messages: []Message{}}
	if j == nil {
		return trace
	}
	now := j.state()
	trace.Since = now.since
	wanted := strings.ToLower(strings.TrimSpace(query))
	matched := make([]string, 0, 64) // the keys of what the query found
	now.entries(func(e *Entry) {
		tenant := e.text(textTenant)
		if e.matches(wanted) && (only.Tenant == "" || tenant == "" || strings.EqualFold(only.Tenant, tenant)) {
			if matched = append(matched, e.keys()...); len(matched) > 2*maxMatches {
				matched = append(matched[:0], matched[len(matched)-maxMatches:]...)
			}
		}
	})
	keys := make(map[string]bool, len(matched))
	for _, key := range matched {
		keys[key] = true
	}
	groups := &groups{byKey: make(map[string]*group)}
	now.entries(func(e *Entry) {
		own := e.keys()
		if slices.ContainsFunc(own, func(key string) bool { return keys[key] }) {
			groups.add(e, own)
		}
	})
	messages := slices.DeleteFunc(groups.messages(), func(m Message) bool { return !only.takes(m) })
	trace.More = max(len(messages)-limit, 0)
	trace.Messages = append(trace.Messages, messages[:len(messages)-trace.More]...)
	if j.cfg.Routes != nil {
		routes := j.cfg.Routes()
		for i := max(len(trace.Messages)-maxUnseen, 0); i < len(trace.Messages); i++ {
			trace.Messages[i].Unseen = unseen(&trace.Messages[i], routes)
		}
	}
	return trace
}

func unseen(m *Message, routes []Route) (list []Unseen) {
	if m.Delivery != "" || m.EventType == "" {
		return nil
	}
	seen, cut := map[string]bool{}, len(m.Events) == maxEvents
	for _, e := range m.Events {
		seen[e.Route] = true
	}
	for _, r := range routes {
		switch {
		case seen[r.Name] || cut:
		case !r.Takes(gateway.EventType(m.EventType), m.MessageType):
			list = append(list, Unseen{r.Name, "takes " + r.Topic})
		default:
			list = append(list, Unseen{r.Name, "has not begun with the message"})
		}
	}
	return list
}

// matches reports whether the entry is one that the query, in lower case, is about.
func (e *Entry) matches(wanted string) bool {
	if strings.Contains(strings.ToLower(e.text(textFilename)), wanted) || e.Step == StepLost && wanted == LostQuery { // also what is empty
		return true
	}
	for _, id := range [...]text{textContextID, textUUID, textSentAs, textDelivery} {
		if isID(e.text(id), wanted) {
			return true
		}
	}
	for id := range strings.SplitSeq(e.text(textMessageIDs), ",") {
		if isID(id, wanted) {
			return true
		}
	}
	return false
}

func isID(id, wanted string) bool {
	if id == "" || len(id) < len(wanted) || len(wanted) < minPart && len(id) != len(wanted) {
		return false
	}
	return strings.EqualFold(id[:len(wanted)], wanted)
}

// keys are what connects the entries of one message: its place with the broker that it came from,
// or the receiving endpoint with each message ID, or else the UUID, which whoever sent it may have
// chosen.
func (e *Entry) keys() []string {
	if delivery := e.text(textDelivery); delivery != "" {
		return []string{"d " + delivery}
	}
	if ids := strings.ToLower(e.text(textMessageIDs)); ids != "" {
		endpoint := "m " + strings.ToLower(e.text(textEndpoint)) + " "
		keys := make([]string, 0, 1+strings.Count(ids, ","))
		for id := range strings.SplitSeq(ids, ",") {
			keys = append(keys, endpoint+id)
		}
		return keys
	}
	if uuid := e.text(textUUID); uuid != "" {
		return []string{"u " + uuid}
	}
	return nil
}

type groups struct {
	byKey map[string]*group
	all   []*group
}

// group is the entries of one message. One that was joined to another has merged set.
type group struct {
	entries []Entry
	merged  *group
}

func (g *groups) add(e *Entry, keys []string) {
	var into *group
	for _, key := range keys {
		found := g.byKey[key].root()
		switch {
		case found == nil || found == into:
		case into == nil:
			into = found
		default: // a file, after its messages
			into.entries = append(into.entries, found.entries...)
			found.entries, found.merged = nil, into
		}
	}
	if into == nil {
		into = &group{}
		g.all = append(g.all, into)
	}
	for _, key := range keys {
		g.byKey[key] = into
	}
	into.entries = append(into.entries, *e)
}

func (g *group) root() *group {
	for g != nil && g.merged != nil {
		g = g.merged
	}
	return g
}

// messages returns the messages, those that were heard of last first.
func (g *groups) messages() []Message {
	var list []Message
	for _, group := range g.all {
		if group.merged == nil {
			list = append(list, group.message())
		}
	}
	slices.SortStableFunc(list, func(a, b Message) int {
		return b.Events[len(b.Events)-1].Time.Compare(a.Events[len(a.Events)-1].Time)
	})
	return list
}

func (g *group) message() Message {
	slices.SortStableFunc(g.entries, func(a, b Entry) int { return cmp.Compare(a.At, b.At) })
	m := Message{Bytes: -1}
	ids := map[string]bool{}
	for i := range g.entries {
		e := &g.entries[i]
		m.MessageType = cmp.Or(m.MessageType, e.text(textMessageType))
		m.Tenant = cmp.Or(m.Tenant, e.text(textTenant))
		m.Endpoint = cmp.Or(m.Endpoint, e.text(textEndpoint))
		m.ContextID = cmp.Or(m.ContextID, e.text(textContextID))
		m.Filename = cmp.Or(m.Filename, e.text(textFilename))
		m.Delivery = cmp.Or(m.Delivery, e.text(textDelivery))
		m.UUID = cmp.Or(e.text(textUUID), m.UUID)
		if m.EventType != string(gateway.EventFileReceived) {
			m.EventType = cmp.Or(e.text(textEventType), m.EventType)
		}
		list := e.text(textMessageIDs)
		if e.Step == StepReceived || e.Step == StepStarted || e.Step == StepFetched && !strings.Contains(list, ",") && m.EventType != string(gateway.EventFileReceived) {
			m.Bytes = max(m.Bytes, e.bytes())
		}
		if list == "" {
			continue
		}
		for id := range strings.SplitSeq(list, ",") {
			if folded := strings.ToLower(id); !ids[folded] {
				ids[folded] = true
				m.MessageIDs = append(m.MessageIDs, id)
			}
		}
	}
	m.State = g.state(len(ids))
	for i := range g.entries[max(len(g.entries)-maxEvents, 0):] {
		e := &g.entries[max(len(g.entries)-maxEvents, 0)+i]
		event := Event{
			Time: time.Unix(0, e.At).UTC(), Step: e.Step, Route: e.text(textRoute), Class: e.text(textClass), Text: e.text(textText),
			Attempt: e.Attempt(), Delay: e.Delay(), At: e.location(), Duplicate: e.duplicate,
		}
		event.Place = event.At.String()
		if e.Step == StepFetched {
			event.Bytes = e.bytes()
		}
		if id := e.text(textMessageIDs); len(ids) > 1 && !strings.Contains(id, ",") {
			event.MessageID = id
		}
		m.Events = append(m.Events, event)
	}
	return m
}

// location is where an entry says that something was stored; nil if it does not.
func (e *Entry) location() *Location {
	l := Location{
		Stream: e.text(textStream), Subject: e.text(textSubject), Sequence: e.numbers[numberSequence],
		Topic: e.text(textTopic), Partition: int32(e.signed(numberPartition)), Offset: e.signed(numberOffset),
		Key: e.text(textKey), ContextID: e.text(textSentAs),
	}
	if l == (Location{}) {
		return nil
	}
	return &l
}

// state says where a message is. ids is how many messages carried it.
func (g *group) state(ids int) string {
	routes := map[string]Step{} // the last thing that each did
	var order []string
	confirmed, rejected := map[string]bool{}, 0
	waits := ""
	var inside Step // the last thing in the subscriber
	for i := range g.entries {
		e := &g.entries[i]
		switch e.Step {
		case StepConfirmed:
			confirmed[strings.ToLower(e.text(textMessageIDs))] = true
		case StepRejected:
			rejected++
		case StepUndeliverable:
			waits = "its payload cannot be had: " + e.text(textText)
		case StepReceived, StepFetched:
			waits = ""
		}
		switch e.Step {
		case StepHeld, StepUnclaimed, StepJoined, StepFetched, StepUntaken:
			inside = e.Step
		}
		route := e.text(textRoute)
		if route == "" || e.Step == StepStored {
			continue
		}
		if _, seen := routes[route]; !seen {
			order = append(order, route)
		}
		routes[route] = e.Step
	}
	slices.Sort(order)
	var parts []string
	words := map[Step]string{
		StepStarted: "is being handled by", StepRetry: "waits for another attempt on", StepDelivered: "delivered by", StepFiltered: "filtered by",
		StepDuplicate: "a duplicate for", StepPoisoned: "poisoned by", StepPoisonFailed: "waits for the poison queue of", StepReturned: "given back by",
		StepLost: "lost by the broker of",
	}
	for step := range Step(len(steps)) {
		var names []string
		for _, name := range order {
			if routes[name] == step {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			parts = append(parts, words[step]+" "+strings.Join(names, ", "))
		}
	}
	if len(order) == 0 && len(confirmed) == 0 {
		parts = append(parts, map[Step]string{
			0: "received; no route has begun with it", StepHeld: "held until its file comes", StepJoined: "joined to a file; no route has begun with it",
			StepFetched: "fetched; no route has begun with it", StepUntaken: "received; no route takes it",
			StepUnclaimed: "no file came for it; no route has begun with it",
		}[inside])
	}
	if waits != "" {
		parts = append(parts, waits)
	}
	switch {
	case rejected > 0:
		parts = append(parts, "the service rejected the confirmation")
	case ids > 0 && len(confirmed) >= ids:
		parts = append(parts, "confirmed")
	case len(confirmed) > 0:
		parts = append(parts, strconv.Itoa(len(confirmed))+" of "+strconv.Itoa(ids)+" messages confirmed")
	case ids > 0:
		parts = append(parts, "not confirmed yet")
	}
	return strings.Join(parts, "; ")
}

// Detail says in one line what an event has beside its step and route. It is safe for a terminal.
func (e *Event) Detail() string {
	var parts []string
	add := func(text string) {
		if text != "" {
			parts = append(parts, Printable(text))
		}
	}
	add(e.MessageID)
	add(e.Place)
	if e.Bytes > 0 {
		add(strconv.FormatInt(e.Bytes, 10) + " bytes")
	}
	if e.Duplicate {
		add("was there before")
	}
	if e.Attempt > 0 {
		add("attempt " + strconv.Itoa(e.Attempt))
	}
	if e.Step == StepRetry {
		add("again in " + e.Delay.Round(time.Millisecond).String())
	}
	if e.Step == StepStored && e.Delay > 0 {
		add("in " + e.Delay.Round(10*time.Microsecond).String())
	}
	if e.Text != "" {
		add(e.Class + ": " + e.Text)
	}
	return strings.Join(parts, ", ")
}

// Printable makes a text safe for a terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, text)
}
