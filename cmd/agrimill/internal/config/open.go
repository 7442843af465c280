package config

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"

	kafkadevices "github.com/agrimill/agrimill/stores/kafka/devicestore"
	"github.com/agrimill/agrimill/stores/nats/devicestore"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
)

// Opening says how a store is opened, which has a connection of its own.
type Opening struct {
	// Client is the name of the connection.
	Client string
	Logger watermill.LoggerAdapter
	// ReadOnly creates nothing.
	ReadOnly bool
	// Once does not connect again, and Timeout bounds connecting; 0: as the configuration says.
	Once    bool
	Timeout time.Duration
}

// overNATS opens something over a connection of its own. close closes both, in this order.
func overNATS[S any](
	connect func(string, ...natsgo.Option) (*natsgo.Conn, error), how Opening, open func(*natsgo.Conn) (S, error), shut func(S) error,
) (opened S, closing func() error, err error) {
	var options []natsgo.Option
	if how.Once {
		options = append(options, natsgo.NoReconnect())
	}
	if how.Timeout > 0 {
		options = append(options, natsgo.Timeout(how.Timeout))
	}
	conn, err := connect(how.Client, options...)
	if err != nil {
		return opened, nil, err
	}
	if opened, err = open(conn); err != nil {
		conn.Close()
		return opened, nil, err
	}
	return opened, func() error {
		err := shut(opened)
		conn.Close()
		return err
	}, nil
}

// OpenNATS opens the store in a bucket, and says how to close it.
func (d Dedup) OpenNATS(ctx context.Context, how Opening) (*kvstore.Store, func() error, error) {
	return overNATS(d.NATSKV.Connect, how, func(conn *natsgo.Conn) (*kvstore.Store, error) {
		config := d.NATSKV.StoreConfig(d)
		config.Conn, config.Logger = conn, how.Logger
		if how.ReadOnly {
			config.Provision = kvstore.ProvisionNone
		}
		return kvstore.New(ctx, config)
	}, (*kvstore.Store).Close)
}

// Open opens the lease for an instance, and says how to close it.
func (h HA) Open(ctx context.Context, instance string, how Opening) (*kvlease.Lease, func() error, error) {
	return overNATS(h.NATSKV.Connect, how, func(conn *natsgo.Conn) (*kvlease.Lease, error) {
		config := h.LeaseConfig()
		config.Conn, config.Logger, config.Instance = conn, how.Logger, instance
		if how.ReadOnly {
			config.Provision = kvlease.ProvisionNone
		}
		return kvlease.New(ctx, config)
	}, (*kvlease.Lease).Close)
}

// Open opens the store in a bucket, and says how to close it.
func (d DevicesInNATS) Open(ctx context.Context, how Opening) (*devicestore.Store, func() error, error) {
	return overNATS(d.Connect, how, func(conn *natsgo.Conn) (*devicestore.Store, error) {
		config := d.StoreConfig()
		config.Conn, config.Logger, config.ReadOnly = conn, how.Logger, how.ReadOnly
		return devicestore.New(ctx, config)
	}, func(*devicestore.Store) error { return nil })
}

// Open opens the store in a topic, and says how to close it.
func (d DevicesInKafka) Open(ctx context.Context, how Opening) (*kafkadevices.Store, func() error, error) {
	config, err := d.StoreConfig()
	if err != nil {
		return nil, nil, err
	}
	config.Logger, config.ReadOnly = how.Logger, how.ReadOnly
	if how.Timeout > 0 {
		config.ConnectTimeout = how.Timeout
	}
	store, err := kafkadevices.New(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	return store, store.Close, nil
}
