package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"testing"

	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/sinks/nats"
	sourcenats "github.com/agrimill/agrimill/sources/nats"
	"github.com/agrimill/agrimill/subscriber"
)

const (
	topic   = "doc:pdf"
	written = 40 // orders, every fourth of which is rolled back
)

// An application writes an order and the message about it in one transaction. What was committed, and nothing
// else, is sent, though the forwarder ends halfway and another one continues.
func TestOutbox(t *testing.T) {
	db := database(t)
	t.Run("gateway", func(t *testing.T) {
		server := gatewaytest.New(t, gatewaytest.Config{})
		sender := server.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{topic}})
		server.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{topic}, Subscribe: []string{topic}})
		client := server.Client()
		pub := testkit.Must(publisher.New(publisher.Config{Client: client, TenantID: server.Tenant(), EndpointID: sender.ID}, nil))(t)
		sub := testkit.Must(subscriber.New(subscriber.Config{Client: client}, nil))(t)
		t.Cleanup(func() { testkit.NoError(t, errors.Join(pub.Close(), sub.Close())) })
		outbox{db, "to_gateway"}.test(t, pub, sub)
	})
	t.Run("NATS", func(t *testing.T) {
		connection := nats.Connection{URL: natstest.Start(t).URL()}
		sink := testkit.Must(nats.New(nats.Config{Connection: connection}, nil))(t)
		source := testkit.Must(sourcenats.New(sourcenats.Config{Connection: connection, Durable: "reader"}, nil))(t)
		t.Cleanup(func() { testkit.NoError(t, errors.Join(source.Close(), sink.Close())) })
		outbox{db, "to_nats"}.test(t, sink, source)
	})
}

// outbox is a topic of Watermill's in a database, and a table of orders with its name.
type outbox struct {
	db   *sql.DB
	name string
}

func (o outbox) test(t *testing.T, to message.Publisher, from message.Subscriber) {
	messages := testkit.Must(from.Subscribe(t.Context(), topic))(t)
	o.create(t)
	for n := range written / 2 {
		o.order(t, n)
	}
	got := map[string]bool{}
	read := func(until int) {
		for len(got) < until {
			msg := <-messages
			if name := msg.Metadata.Get(gateway.KeyFilename); name != string(msg.Payload)+".pdf" {
				t.Errorf("order %s came as %q", msg.Payload, name)
			}
			got[string(msg.Payload)] = true
			msg.Ack()
		}
	}
	o.forward(t, to, func() { read(7) })
	for n := written / 2; n < written; n++ {
		o.order(t, n)
	}
	o.forward(t, to, func() { read(written * 3 / 4) })
	for n := range written {
		if got[strconv.Itoa(n)] != committed(n) {
			t.Errorf("order %d: sent %t", n, got[strconv.Itoa(n)])
		}
	}
}

// create makes both tables.
func (o outbox) create(t *testing.T) {
	_, err := o.db.ExecContext(t.Context(), fmt.Sprintf("CREATE TABLE %s (number int PRIMARY KEY)", o.name))
	testkit.NoError(t, err)
	sub := o.subscriber(t)
	testkit.NoError(t, sub.SubscribeInitialize(o.name))
	testkit.NoError(t, sub.Close())
}

func committed(n int) bool { return n%4 != 3 }

// order writes order n and its message.
func (o outbox) order(t *testing.T, n int) {
	tx := testkit.Must(o.db.BeginTx(t.Context(), nil))(t)
	_, err := tx.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO %s VALUES ($1)", o.name), n)
	testkit.NoError(t, err)
	table := testkit.Must(watermillsql.NewPublisher(watermillsql.TxFromStdSQL(tx),
		watermillsql.PublisherConfig{SchemaAdapter: watermillsql.DefaultPostgreSQLSchema{}}, nil))(t)
	msg := message.NewMessage(fmt.Sprintf("%s-%d", o.name, n), []byte(strconv.Itoa(n)))
	msg.Metadata.Set(gateway.KeyFilename, strconv.Itoa(n)+".pdf")
	testkit.NoError(t, forwarder.NewPublisher(table, forwarder.PublisherConfig{ForwarderTopic: o.name}).Publish(topic, msg))
	if committed(n) {
		testkit.NoError(t, tx.Commit())
	} else {
		testkit.NoError(t, tx.Rollback())
	}
}

// forward sends what is in the outbox until f has returned.
func (o outbox) forward(t *testing.T, to message.Publisher, f func()) {
	forward := testkit.Must(forwarder.NewForwarder(o.subscriber(t), keepOpen{to}, nil,
		forwarder.Config{ForwarderTopic: o.name, CloseTimeout: testkit.Patience}))(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- forward.Run(ctx) }()
	testkit.Ends(t, "forwarding", f)
	stop()
	testkit.NoError(t, <-ended)
}

func (o outbox) subscriber(t *testing.T) *watermillsql.Subscriber {
	return testkit.Must(watermillsql.NewSubscriber(watermillsql.BeginnerFromStdSQL(o.db), watermillsql.SubscriberConfig{
		SchemaAdapter: watermillsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{},
	}, nil))(t)
}

// keepOpen outlives a Router, which closes its publishers.
type keepOpen struct{ message.Publisher }

func (keepOpen) Close() error { return nil }
