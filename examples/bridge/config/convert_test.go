package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/agrimill/agrimill/sinks/kafka"
)

// otherwise changes a value to another that is allowed; false when there is none.
func otherwise(v reflect.Value, tag reflect.StructTag) bool {
	switch target := v.Addr().Interface().(type) {
	case *Secret:
		*target = NewSecret("other")
	case *List:
		*target = List{"OTHER"}
	case *map[string]string:
		*target = map[string]string{"a": "b"}
	case *Backoff:
		*target = Backoff{Min: 7 * time.Second, Max: 8 * time.Second}
	case *string:
		before := *target
		*target = "other"
		for value := range strings.SplitSeq(tag.Get("enum"), ",") {
			if value != "" && value != before {
				*target = value
			}
		}
	default:
		switch v.Kind() {
		case reflect.String:
			v.SetString("other://")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 3)
		default:
			return false
		}
	}
	return true
}

// everyKeyCounts changes the keys of a section one by one, and wants each to change what
// is made of it.
func everyKeyCounts(t *testing.T, section reflect.Type, convert func(section any) any, except ...string) {
	t.Helper()
	fresh := func() reflect.Value {
		v := reflect.New(section).Elem()
		new(decoder).fill(v)
		return v
	}
	before := convert(fresh().Interface())
	for _, f := range fields(section) {
		changed := fresh()
		if strings.HasSuffix(f.name, "_file") && f.name != "credentials_file" && f.name != "nkey_seed_file" {
			continue // read by Load
		}
		if !otherwise(changed.FieldByIndex(f.index), f.tag) {
			continue
		}
		same := reflect.DeepEqual(before, convert(changed.Interface()))
		excepted := false
		for _, name := range except {
			excepted = excepted || name == f.name
		}
		if same != excepted {
			t.Errorf("%s.%s: ignored: %t, want %t", section.Name(), f.name, same, excepted)
		}
	}
}

// No key is read and then forgotten.
func TestEveryKeyCounts(t *testing.T) {
	must := func(value any, err error) any {
		require.NoError(t, err)
		return value
	}
	everyKeyCounts(t, reflect.TypeFor[Gateway](), func(s any) any { return must(s.(Gateway).ClientConfig()) }, "application_id", "software_version_id")
	everyKeyCounts(t, reflect.TypeFor[GatewayRetry](), func(s any) any { return must(Gateway{Retry: s.(GatewayRetry)}.ClientConfig()) })
	everyKeyCounts(t, reflect.TypeFor[NATS](), func(s any) any { return must(s.(NATS).SinkConfig("x")) })
	everyKeyCounts(t, reflect.TypeFor[Kafka](), func(s any) any {
		section := s.(Kafka)
		if section.Version == "other" {
			section.Version = "3.6.0"
		}
		config, err := section.SinkConfig("x")
		require.NoError(t, err)
		key := config.PartitionKey(&message.Message{Metadata: message.Metadata{"x-router-receiving-endpoint-id": "default", "other": "changed"}})
		config.PartitionKey = nil
		return []any{config, key}
	})
	everyKeyCounts(t, reflect.TypeFor[SASL](), func(s any) any {
		section := s.(SASL)
		return must(Kafka{KafkaConnection: KafkaConnection{Version: "2.8.0", SASL: &section}, PartitionKey: NoPartitionKey}.SinkConfig("x")).(kafka.Config).SASL
	})
	everyKeyCounts(t, reflect.TypeFor[CloudEvents](), func(s any) any {
		section := s.(CloudEvents)
		return *section.config()
	})
	everyKeyCounts(t, reflect.TypeFor[Blob](), func(s any) any { return s.(Blob).SinkConfig() }, "url")
	everyKeyCounts(t, reflect.TypeFor[LogSink](), func(s any) any { return s.(LogSink).SinkConfig() })
	everyKeyCounts(t, reflect.TypeFor[Subscriber](), func(s any) any { return (&Config{Subscriber: s.(Subscriber)}).SubscriberConfig() })
	everyKeyCounts(t, reflect.TypeFor[Confirm](), func(s any) any { return (&Config{Subscriber: Subscriber{Confirm: s.(Confirm)}}).SubscriberConfig() })
	everyKeyCounts(t, reflect.TypeFor[Publisher](), func(s any) any { return (&Config{Publisher: s.(Publisher)}).PublisherConfig(ToGateway{}) })
	everyKeyCounts(t, reflect.TypeFor[ToGateway](), func(s any) any { return (&Config{}).PublisherConfig(s.(ToGateway)) }, "type")
	everyKeyCounts(t, reflect.TypeFor[Poison](), func(s any) any { return (&Config{Poison: s.(Poison)}).RouterConfig() }, "sink")
	everyKeyCounts(t, reflect.TypeFor[Retry](), func(s any) any { return (&Config{Retry: s.(Retry)}).RouterConfig() })
	everyKeyCounts(t, reflect.TypeFor[Dedup](), func(s any) any { return (&Config{Dedup: s.(Dedup)}).RouterConfig() })
	everyKeyCounts(t, reflect.TypeFor[DedupInMemory](), func(s any) any { return s.(DedupInMemory).StoreConfig() })
	everyKeyCounts(t, reflect.TypeFor[DedupInFile](), func(s any) any { return s.(DedupInFile).StoreConfig() })
	everyKeyCounts(t, reflect.TypeFor[ClaimCheck](), func(s any) any { return s.(ClaimCheck).StoreConfig() }, "from")
	everyKeyCounts(t, reflect.TypeFor[Endpoint](), func(s any) any { return s.(Endpoint).Request() }, "tenant", "external_id", "recreate")
	everyKeyCounts(t, reflect.TypeFor[Capability](), func(s any) any {
		return Endpoint{Capabilities: []Capability{s.(Capability)}}.Request()
	})
}

// What enum: allows means something different each.
func TestEveryValueCounts(t *testing.T) {
	made := map[any]string{}
	for _, name := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		made[compression(name)] = name
	}
	require.Len(t, made, 5)
	made = map[any]string{}
	for _, name := range []string{"unknown", "memory", "disk", "synced", "replicated"} {
		made[durability(name)] = name
	}
	require.Len(t, made, 5)
	made = map[any]string{}
	for _, name := range []string{"limits", "interest", "workqueue"} {
		config, err := NATS{Retention: name}.SinkConfig("x")
		require.NoError(t, err)
		made[config.Retention] = name
	}
	require.Len(t, made, 3)
	made = map[any]string{}
	for _, name := range []string{"create", "update", "none"} {
		config, err := NATS{Provision: name}.SinkConfig("x")
		require.NoError(t, err)
		made[config.Provision] = name
	}
	require.Len(t, made, 3)
	for name, want := range map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError} {
		require.Equal(t, want, Log{Level: name}.SlogLevel())
	}
	c := &Config{Subscriber: Subscriber{Payload: PayloadClaimCheck}, ClaimCheck: &ClaimCheck{From: 5}}
	require.EqualValues(t, 5, c.SubscriberConfig().Payload.ClaimCheckFrom)
}

// Certificates come from files, for every kind of connection.
func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "EC PRIVATE KEY", Bytes: secret}} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	file := filepath.Join(dir, "bridge.yaml")
	tls := "tls: {ca_file: cert.pem, cert_file: cert.pem, key_file: key.pem, server_name: other.example}"
	text := strings.Replace(small, "  client_id:", "  "+tls+"\n  client_id:", 1)
	text = strings.Replace(text, `nats: {url: "nats://127.0.0.1:4222"}`, "nats: {"+tls+"}\n  lake: {kafka: {brokers: \"b:1\", "+tls+", sasl: {user: u, mechanism: SCRAM-SHA-256, password: \"${SECRET}\"}}}", 1)
	text = strings.Replace(text, "poison:", "  - {name: back, from: {kafka: {brokers: \"b:1\", topics: t, "+tls+"}}, to: {gateway: {}}}\npoison:", 1) +
		"dedup: {nats_kv: {" + tls + "}}\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	c, err := Load(file, smallEnv)
	require.NoError(t, err)

	client, err := c.Gateway.ClientConfig()
	require.NoError(t, err)
	nats, err := c.Sinks["farm"].NATS.SinkConfig("farm")
	require.NoError(t, err)
	lake, err := c.Sinks["lake"].Kafka.SinkConfig("lake")
	require.NoError(t, err)
	for _, config := range []any{client.TLS, nats.TLS, lake.TLS} {
		require.NotNil(t, config)
	}
	require.Len(t, client.TLS.Certificates, 1)
	require.NotNil(t, client.TLS.RootCAs)
	require.Equal(t, "other.example", lake.TLS.ServerName)

	source, err := c.Routes[1].From.Kafka.ClientConfig()
	require.NoError(t, err)
	require.True(t, source.Net.TLS.Enable)
	reader, err := c.Sinks["lake"].Kafka.ClientConfig()
	require.NoError(t, err)
	require.True(t, reader.Net.SASL.Enable)
	require.NotNil(t, reader.Net.SASL.SCRAMClientGeneratorFunc)
	require.NoError(t, reader.Validate())
	options, err := c.Dedup.NATSKV.Options("x")
	require.NoError(t, err)
	require.NotEmpty(t, options)

	require.NoError(t, os.Remove(filepath.Join(dir, "cert.pem")))
	for _, use := range []func() error{
		func() error { _, err := c.Gateway.ClientConfig(); return err },
		func() error { _, err := c.Sinks["farm"].NATS.SinkConfig(""); return err },
		func() error { _, err := c.Sinks["lake"].Kafka.SinkConfig(""); return err },
		func() error { _, err := c.Routes[1].From.Kafka.ClientConfig(); return err },
		func() error { _, err := c.Dedup.NATSKV.Options(""); return err },
	} {
		require.ErrorIs(t, use(), ErrTLS)
	}
	_, err = (NATSConnection{NKeySeedFile: filepath.Join(dir, "none")}).Options("x")
	require.Error(t, err)
}
