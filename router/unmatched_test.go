package router_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// Messages are numbered; which routes want one, and what becomes of it, depends on its number:
//
//	0: the first route takes it
//	1: the second one
//	2: neither
//	3: the first one poisons it, the second one refuses it
//	4: the first one refuses it, the sink of the second one is down at first
//	5: the first one transforms it into nothing, the second one refuses it
func TestWhatEveryFilterRefuses(t *testing.T) {
	const n, kinds, messageType = 60, 6, "app:test:json"
	for _, policy := range []subscriber.Unmatched{subscriber.UnmatchedConfirm, subscriber.UnmatchedQuarantine} {
		t.Run(policy.String(), func(t *testing.T) {
			t.Parallel()
			server := gatewaytest.New(t, gatewaytest.Config{})
			sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
			server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{messageType}, Subscribe: []string{messageType}})

			failures := make(chan struct{}, 5) // the sink of the second route fails as often
			for range cap(failures) {
				failures <- struct{}{}
			}
			first, poison, quarantine := newSink(nil), newSink(nil), newSink(nil)
			second := newSink(func(_ string, msg *message.Message) error {
				select {
				case <-failures:
					return down
				default:
					return nil
				}
			})
			kind := func(msg *message.Message) int { return int(msg.Payload[len(msg.Payload)-1] - '0') }
			held := func(id string) bool {
				return slices.ContainsFunc([]*memorySink{first, second, poison, quarantine}, func(sink *memorySink) bool {
					return slices.ContainsFunc(sink.all(), func(m storedMessage) bool { return m.msg.Metadata[gateway.KeyMessageID] == id })
				})
			}
			dropped := map[string]bool{}
			server.OnConfirm(func(e gatewaytest.LedgerEntry) {
				if !held(e.MessageID) && !dropped[e.MessageID] {
					t.Errorf("message %s is confirmed, and nobody has it", e.MessageID)
				}
			})
			for i := range n {
				ids := testkit.Must(server.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, Payload: fmt.Appendf(nil, "%d/%d", i, i%kinds)}))(t)
				dropped[ids[0]] = i%kinds == 5 || i%kinds == 2 && policy == subscriber.UnmatchedConfirm
			}

			sub, _ := subscribeTo(t, server, subscriber.Config{Unmatched: policy, Quarantine: subscriber.QuarantineConfig{Publisher: quarantine}})
			r := start(t, router.Config{Poison: poison, Retry: fastRetry, Dedup: router.DedupSettings{Store: newStore(t, 0)}},
				router.Route{
					Name: "first", From: sub, Topic: subscriber.AllData, To: first,
					Filter: func(msg *message.Message) (bool, error) { return slices.Contains([]int{0, 3, 5}, kind(msg)), nil },
					Transform: func(msg *message.Message) ([]*message.Message, error) {
						switch kind(msg) {
						case 3:
							return nil, router.Permanent(errors.New("unfit"))
						case 5:
							return nil, nil
						}
						return []*message.Message{msg}, nil
					},
				},
				router.Route{
					Name: "second", From: sub, Topic: messageType, To: second,
					Filter: func(msg *message.Message) (bool, error) { return slices.Contains([]int{1, 4}, kind(msg)), nil },
				})
			testkit.NoError(t, server.WaitConfirmed(testkit.Context(t), n))
			testkit.Eventually(t, "all have been asked about the rest", func() bool { return sub.Stats().Unmatched == n/kinds })
			r.wantStop(t)
			stored := quarantine.all()
			if policy != subscriber.UnmatchedQuarantine {
				if len(stored) > 0 {
					t.Errorf("%d are in the quarantine", len(stored))
				}
				return
			}
			if len(stored) != n/kinds {
				t.Errorf("%d are in the quarantine, want %d", len(stored), n/kinds)
			}
			for _, m := range stored {
				if !strings.HasSuffix(string(m.msg.Payload), "/2") || m.msg.Metadata[subscriber.KeyQuarantineClass] != "unmatched" || m.topic != "quarantine" {
					t.Errorf("%q is in %s as %s", m.msg.Payload, m.topic, m.msg.Metadata[subscriber.KeyQuarantineClass])
				}
			}
		})
	}
}
