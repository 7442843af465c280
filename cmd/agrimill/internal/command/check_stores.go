package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/sinks/nats"
	kafkadevices "github.com/agrimill/agrimill/stores/kafka/devicestore"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
)

// storeProbes returns the remaining checks: dedup store, claim check, addresses.
func (c *checker) storeProbes() []probe {
	cfg := c.cfg
	list := []probe{{"dedup", cfg.Dedup.Store, c.dedup}}
	if cfg.HA != nil && cfg.HA.NATSKV != nil {
		lease := func(ctx context.Context, how config.Opening) (*kvlease.Lease, func() error, error) {
			return cfg.HA.Open(ctx, "", how)
		}
		list = append(list, probe{"ha", "nats_kv", func(ctx context.Context) (finding, error) {
			return keyValue(ctx, c.timeout, cfg.HA.NATSKV.Bucket, cfg.HA.NATSKV.Provision == kvlease.ProvisionCreate, lease)
		}})
	}
	if cfg.Devices != nil && cfg.Devices.NATSKV != nil {
		list = append(list, probe{"devices", "nats_kv", func(ctx context.Context) (finding, error) {
			return keyValue(ctx, c.timeout, cfg.Devices.NATSKV.Bucket, true, cfg.Devices.NATSKV.Open)
		}})
	}
	if cfg.Devices != nil && cfg.Devices.Kafka != nil {
		list = append(list, probe{"devices", "kafka", c.devicesInKafka})
	}
	if cfg.ClaimCheck != nil {
		list = append(list, probe{"claim_check", "", func(ctx context.Context) (finding, error) { return bucket(ctx, string(cfg.ClaimCheck.URL)) }})
	}
	if path := cfg.Journal.Path; path != "" && cfg.Journal.MaxAge >= 0 {
		list = append(list, probe{"journal", "", func(context.Context) (finding, error) {
			return storeFile(path, func() (io.Closer, error) { return io.NopCloser(nil), journal.Look(path) })
		}})
	}
	if cfg.Admin.Address != config.AdminOff {
		list = append(list, probe{"admin", cfg.Admin.Address, c.admin})
	}
	if cfg.Tracing.OTLPEndpoint != "" {
		list = append(list, probe{"tracing", "", c.collector})
	}
	return list
}

func (c *checker) dedup(ctx context.Context) (finding, error) {
	d := c.cfg.Dedup
	switch {
	case d.Store == config.DedupBBolt && d.BBolt != nil:
		settings := *d.BBolt
		settings.MaxEntries, settings.OpenTimeout = d.MaxEntries, min(boltstore.DefaultOpenTimeout, c.timeout/2)
		unreadable := 0
		found, err := storeFile(settings.Path, func() (closer io.Closer, err error) {
			if unreadable, err = boltstore.Look(settings); err != nil || unreadable > 0 {
				return io.NopCloser(nil), err // New would remove them
			}
			return boltstore.New(settings)
		})
		if unreadable > 0 {
			found.warn = plural(unreadable, "record") + " cannot be read; run removes them, and a copy of their messages is not recognized"
		}
		return found, err
	case d.Store == config.DedupNATSKV && d.NATSKV != nil:
		return keyValue(ctx, c.timeout, d.NATSKV.Bucket, d.NATSKV.Provision == kvstore.ProvisionCreate, d.OpenNATS)
	case d.Store == config.DedupOff:
		return finding{detail: "deduplication is off", warn: "a redelivered message is handled again, e.g. after a restart"}, nil
	}
	return finding{detail: "kept in memory until agrimill exits"}, nil
}

// devicesInKafka opens the topic of the device descriptions as run does, without creating it.
func (c *checker) devicesInKafka(ctx context.Context) (finding, error) {
	topic := c.cfg.Devices.Kafka.Topic
	_, closing, err := c.cfg.Devices.Kafka.Open(ctx, config.Opening{ReadOnly: true})
	switch {
	case errors.Is(err, kafkadevices.ErrMissing):
		return finding{detail: "the topic " + topic + " will be created"}, nil
	case err != nil:
		return finding{}, kafkaAdvice(err)
	}
	return finding{detail: "topic " + topic + " exists"}, closing()
}

// keyValue opens a bucket in NATS as run does, without creating it.
func keyValue[S any](
	ctx context.Context, timeout time.Duration, bucket string, create bool, open func(context.Context, config.Opening) (S, func() error, error),
) (finding, error) {
	var notes notes
	_, closing, err := open(ctx, config.Opening{Client: "agrimill check", Logger: &notes, ReadOnly: true, Once: true, Timeout: timeout})
	switch {
	case errors.Is(err, jetstream.ErrBucketNotFound) && create:
		return finding{detail: "the bucket " + bucket + " will be created"}, nil
	case errors.Is(err, jetstream.ErrBucketNotFound):
		return finding{}, advise(err, "create the bucket %s, or set provision: create", bucket)
	case errors.Is(err, kvstore.ErrConfig), errors.Is(err, nats.ErrStream):
		return finding{}, advise(err, "name another bucket, which run creates, or delete this one while nothing runs")
	case err != nil:
		return finding{}, natsAdvice(err)
	}
	return finding{"bucket " + bucket + " exists", notes.text()}, closing()
}

// storeFile opens a file as run does, without creating it.
func storeFile(path string, open func() (io.Closer, error)) (finding, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		dir := filepath.Dir(path)
		if _, err = os.Stat(dir); err == nil {
			err = writable(dir)
		}
		if err != nil {
			return finding{}, advise(err, "create the directory and let this user write there")
		}
		return finding{detail: "the file will be created"}, nil
	}
	if err == nil && info.IsDir() {
		return finding{}, advise(fmt.Errorf("%s is a directory", path), "name a file in it, which this user may read and write")
	}
	file, err := open()
	switch {
	case errors.Is(err, boltstore.ErrLocked), errors.Is(err, journal.ErrInUse):
		return finding{detail: "is in use", warn: "another process has the file open; that is fine if it is this agrimill"}, nil
	case errors.Is(err, journal.ErrDamaged):
		return finding{detail: err.Error(), warn: "run renames the file and begins a new one; restore it if you need what it has"}, nil
	case errors.Is(err, boltstore.ErrDamaged):
		return finding{}, advise(err, "restore the file, or move it away: agrimill then starts with an empty store and recognizes no earlier messages")
	case err != nil:
		return finding{}, advise(err, "may this user read and write the file, and is there disk space?")
	}
	return finding{detail: "the file exists"}, file.Close()
}

// writable makes a file in the directory, or else in the nearest one above that there is, and removes it: who may write
// there depends on more than permissions, and a file system may be read-only.
func writable(dir string) error {
	for {
		file, err := os.CreateTemp(dir, ".agrimill-check-*")
		if err == nil {
			_, err = file.WriteString("x") // a full disk may well take an empty file
			if err = errors.Join(err, file.Close(), os.Remove(file.Name())); err == nil {
				return nil
			}
		}
		switch above := filepath.Dir(dir); {
		case !errors.Is(err, fs.ErrNotExist) || above == dir:
			var because *fs.PathError
			if errors.As(err, &because) {
				err = because.Err
			}
			return fmt.Errorf("nothing can be written in %s: %w", dir, err)
		default:
			dir = above
		}
	}
}

// admin checks that the address is free.
func (c *checker) admin(ctx context.Context) (finding, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", c.cfg.Admin.Address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return finding{detail: "is in use", warn: "something is listening there; that is fine if it is this agrimill"}, nil
	case errors.Is(err, fs.ErrPermission):
		return finding{}, advise(err, "this user may not listen there: choose a port above 1023")
	case err != nil:
		return finding{}, advise(err, "admin.address must be an address of this machine")
	}
	return finding{detail: "the address is free"}, listener.Close()
}

// collector checks that something is listening at the collector's address.
func (c *checker) collector(ctx context.Context) (finding, error) {
	u, err := url.Parse(string(c.cfg.Tracing.OTLPEndpoint))
	if err != nil {
		return finding{}, errors.New("the collector address is not a URL")
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), u.Scheme)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return finding{}, advise(err, "is the collector running, and is it reachable from here? agrimill works without it")
	}
	return finding{detail: "something is listening"}, conn.Close()
}
