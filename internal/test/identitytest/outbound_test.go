package identitytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/sinks"
)

// outbound is the gateway as the sink of a route, in memory: what a publisher sends is stored like what a broker gets, and a
// receiver knows copies by their context ID.
type outbound struct {
	*memory
	calls    int // deliveries and replays so far
	payloads map[string]string
	times    map[string]time.Time
}

var _ publisher.Client = (*outbound)(nil)

func (*outbound) ValidateMessage(gateway.SendMessageRequest) error { return nil }

func (*outbound) ListAuthorizedTenants(context.Context) ([]gateway.TenantInfo, error) {
	return nil, nil
}

// SendMessage stores a message under the label that address has given it, and checks the rules of what is sent:
// one payload, sender and list of recipients for each context ID, and one time for all attempts of a delivery.
func (g *outbound) SendMessage(ctx context.Context, req gateway.SendMessageRequest) error {
	name := strings.Join([]string{req.ContextID, req.Filename, req.MessageType}, " ")
	what := fmt.Sprintf("%q from %s to %v", req.Payload, req.EndpointID, req.DirectRecipients)
	if was, ok := g.payloads[req.ContextID]; ok && was != what {
		g.t.Errorf("%s\nthe context ID %s was that of %s, and is that of %s", strings.Join(g.log, "\n"), req.ContextID, was, what)
	}
	g.payloads[req.ContextID] = what
	call := fmt.Sprint(g.calls, " ", name)
	if was, ok := g.times[call]; ok && !was.Equal(req.SentAt) {
		g.t.Errorf("%s\n%s was sent at %v, and again at %v", strings.Join(g.log, "\n"), name, was, req.SentAt)
	}
	g.times[call] = req.SentAt

	msg := message.NewMessage("", slices.Clone(req.Payload))
	msg.SetContext(ctx)
	label := strings.Split(req.Filename, "|")
	msg.Metadata[gateway.KeyReceivingEndpointID], msg.Metadata[gateway.KeyMessageID], msg.Metadata["kind"] = label[0], label[1], label[2]
	msg.Metadata["name"] = name
	err := g.broker.Publish(req.MessageType, msg)
	if errors.Is(err, sinks.ErrUnavailable) {
		return fmt.Errorf("%w: the answer is lost", gateway.ErrUnavailable)
	}
	return err
}

// address makes messages of what the transform returned that say what they were made of. The sender or the recipients go
// with the topic; the context ID is that of what was received, from which they were copied.
func (m *mill) address(received *message.Message, made []*message.Message) []*message.Message {
	for i, msg := range made {
		if msg == received {
			msg = received.Copy()
			made[i] = msg
		}
		msg.Metadata[gateway.KeyFilename] = strings.Join([]string{
			received.Metadata[gateway.KeyReceivingEndpointID], received.Metadata[gateway.KeyMessageID], msg.Metadata["kind"],
		}, "|")
		delete(msg.Metadata, gateway.KeyMessageType) // it is the topic
		from, to := m.topic, "all"
		if received.Metadata[gateway.KeyReceivingEndpointID] == "e" {
			from, to = "one", m.topic
		}
		msg.Metadata[gateway.KeyEndpointID], msg.Metadata[gateway.KeyDirectRecipients] = "from "+from, "to "+to
	}
	return made
}

// receive returns what the receivers have.
func (g *outbound) receive(list []*stored) []*stored {
	known := map[string]bool{}
	for _, s := range list {
		s.copy = known[s.Metadata["name"]]
		known[s.Metadata["name"]] = true
	}
	return list
}
