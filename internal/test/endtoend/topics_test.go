package endtoend

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/farmfile"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

// What a sink publishes to a topic comes to whoever subscribes to the topic, and to nobody else: message types, what a topic
// template makes of them, and what is no name for the broker.
func TestOneSpaceOfTopics(t *testing.T) {
	t.Parallel()
	topics := append(farmfile.MessageTypes(),
		"app:"+strings.Repeat("long_type:", 9)+"zip", // as long as a message type may be
		"plain", "two.parts", "a b", "Höfe.Flur\t1", "50%", "app:a.b:zip", "{x}/\x00\\", "a*b", "under_score")
	realBrokers(t, nil, func(t *testing.T, b componentBroker) {
		all := map[string]bool{}
		for i, topic := range topics {
			want := map[string]bool{fmt.Sprint(i): true}
			publish(t, b.publisher, topic, fmt.Sprint(i))
			if slices.Contains(farmfile.MessageTypes(), topic) {
				want[fmt.Sprint(i, " by template")] = true
				publish(t, b.publisher, b.publisher.(sinks.Sink).TopicSegment(topic), fmt.Sprint(i, " by template"))
			}
			maps.Copy(all, want)
			reads(t, b.subscriber(fmt.Sprint("of", i)), topic, want)
		}
		if b.wildcards {
			reads(t, b.subscriber("two"), "two.*", map[string]bool{fmt.Sprint(slices.Index(topics, "two.parts")): true})
			reads(t, b.subscriber("tab"), "*.Flur\t1", map[string]bool{fmt.Sprint(slices.Index(topics, "Höfe.Flur\t1")): true})
			reads(t, b.subscriber("all"), ">", all)
		}
	})
}

// reads takes from a subscription all that is wanted, and nothing else.
func reads(t *testing.T, subscriber message.Subscriber, topic string, want map[string]bool) {
	t.Helper()
	messages := testkit.Must(subscriber.Subscribe(t.Context(), topic))(t)
	for range len(want) {
		var msg *message.Message
		testkit.Ends(t, "receiving from "+topic, func() { msg = <-messages })
		if text := string(msg.Payload); !want[text] {
			t.Fatalf("topic %q has %q, want one of %v", topic, text, want)
		} else {
			delete(want, text)
		}
		msg.Ack()
	}
}
