package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks"
	sinkkafka "github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sources/kafka"
)

// A group that others use is told, by Look and by Subscribe, and Look leaves no trace of itself.
func testLook(t *testing.T, addr string) {
	for name, test := range map[string]struct {
		use  func(f *topic)
		read func(*kafka.Config)
		is   error
		says string // in the error or the log
	}{
		"nobody":           {},
		"missing topic":    {read: func(c *kafka.Config) { c.Topics = append(c.Topics, c.Group+"-gone") }, is: kafka.ErrNoTopic, says: "-gone; there are "},
		"another protocol": {use: func(f *topic) { f.join("connect") }, is: kafka.ErrConfig, says: "with the protocol connect"},
		"another client":   {use: func(f *topic) { f.member(f.name, kgo.RangeBalancer()) }, says: "another client ID, which get a part of the records: stranger"},
		"another topic": {use: func(f *topic) {
			f.member(newTopic(f.T, f.addr, 1).name, kgo.RangeBalancer())
		}},
		"another strategy": {use: func(f *topic) { f.member(f.name, kgo.RoundRobinBalancer()) }, says: "share partitions by roundrobin; nothing can be read unless they know range"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTopic(t, addr, 1)
			f.put(1, 3)
			if test.use != nil {
				test.use(f)
			}
			config := kafka.Config{Connection: sinkkafka.Connection{Brokers: []string{addr}}, TopicPrefix: sinkkafka.NoTopicPrefix, Topics: []string{f.name}, Group: f.name, Client: quick}
			if test.read != nil {
				test.read(&config)
			}
			log := testkit.NewLog()
			_, err := kafka.Look(config, "", log)
			if !errors.Is(err, test.is) || errors.Is(err, sinks.ErrUnavailable) {
				t.Fatalf("got %v, want %v", err, test.is)
			}
			said := fmt.Sprint(err, log)
			if !strings.Contains(said, test.says) || test.says == "" && said != "<nil> " {
				t.Errorf("said %q, want %q", said, test.says)
			}
			topics, err := kadm.NewClient(f.client).ListTopics(t.Context())
			if err != nil || topics.Has(f.name+"-gone") {
				t.Errorf("the topic was made, or %v", err)
			}
			if test.use == nil || test.is != nil {
				groups, err := kadm.NewClient(f.client).DescribeGroups(t.Context(), f.name)
				if err != nil || test.use == nil && len(groups[f.name].Members) > 0 {
					t.Errorf("the group has the members %v, %v", groups[f.name].Members, err)
				}
			}
			if test.is == kafka.ErrConfig {
				if _, err := f.subscriber(nil).Subscribe(t.Context(), ""); !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("Subscribe: got %v, want what Look said", err)
				}
			}
		})
	}
}

// member joins the group as another client that reads a topic, and waits until it is a member.
func (f *topic) member(reads string, balancer kgo.GroupBalancer) {
	f.Helper()
	joined := make(chan struct{})
	kafkatest.Client(f, f.addr, kgo.ClientID("stranger"), kgo.ConsumerGroup(f.name), kgo.ConsumeTopics(reads), kgo.Balancers(balancer),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
			if len(assigned) > 0 {
				close(joined)
			}
		}))
	<-joined
	f.described()
}

// described waits until the broker tells others of the members of the group.
func (f *topic) described() {
	f.Helper()
	testkit.Eventually(f, "the group has a member", func() bool {
		groups, err := kadm.NewClient(f.client).DescribeGroups(f.Context(), f.name)
		return err == nil && len(groups[f.name].Members) > 0
	})
}

// join makes a member of the group that uses it for something else.
func (f *topic) join(protocol string) {
	f.Helper()
	request := kmsg.NewJoinGroupRequest()
	request.Group, request.ProtocolType, request.SessionTimeoutMillis, request.RebalanceTimeoutMillis = f.name, protocol, 30_000, 30_000
	request.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "default", Metadata: []byte{}}}
	client := kafkatest.Client(f, f.addr)
	answer, err := request.RequestWith(f.Context(), client)
	const memberIDRequired = 79
	if err == nil && answer.ErrorCode == memberIDRequired {
		request.MemberID = answer.MemberID
		answer, err = request.RequestWith(f.Context(), client)
	}
	if err != nil || answer.ErrorCode != 0 {
		f.Fatal(err, answer)
	}
	f.described()
}
