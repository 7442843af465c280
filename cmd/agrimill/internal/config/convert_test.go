package config

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/sinks/nats"
)

// own are the keys that no package has: what the program puts together out of packages.
var own = []string{
	"gateway.tls", "gateway.application_id", "gateway.software_version_id", "endpoints", "subscriber.envelope", "publisher", "retry",
	"sinks.<name>.nats.tls", "sinks.<name>.kafka.tls", "sinks.<name>.kafka.partition_key", "sinks.<name>.blob.url",
	"routes[].name", "routes[].from", "routes[].filter", "routes[].set", "routes[].to", "routes[].durable", "poison.sink",
	"dedup.store", "dedup.max_entries", "dedup.bbolt", "dedup.nats_kv", "ha.nats_kv.tls", "ha.ttl", "ha.consumers", "ha.stop_without_nats", "devices.nats_kv", "devices.kafka", "claim_check.from", "shutdown.timeout", "tracing", "log",
}

// Every key is a field of a package's own configuration, so that a setting is declared,
// documented and validated in one place.
func TestKeysAreFieldsOfPackages(t *testing.T) {
	here := reflect.TypeFor[Config]().PkgPath()
	var visit func(section reflect.Type, path string)
	visit = func(section reflect.Type, path string) {
		for _, f := range fields(section) {
			at := join(path, f.name)
			inner, suffix := sectionOf(f.typ)
			at += suffix
			allowed := slices.ContainsFunc(own, func(prefix string) bool {
				return at == prefix || strings.HasPrefix(at, prefix+".") || strings.HasPrefix(at, prefix+"[")
			})
			switch owner := ownerOf(section, f); {
			case inner != nil:
				visit(inner, at)
			case owner.PkgPath() == here && !allowed && f.base == "":
				t.Errorf("%s is a field of %s: it belongs into a package's configuration", at, owner)
			}
		}
	}
	visit(reflect.TypeFor[Config](), "")
}

// Every value that a key names can be read, and means something different.
func TestEveryValueCounts(t *testing.T) {
	walk(reflect.TypeFor[Config](), "", func(path string, f field) {
		allowed := f.tag.Get("enum")
		if allowed == "" {
			return
		}
		made := map[any]string{}
		for text := range strings.SplitSeq(allowed, ",") {
			d := &decoder{sources: &sources{keys: map[string]place{}, values: map[string]place{}}, excused: map[string]bool{}}
			v := reflect.New(f.typ).Elem()
			d.value(&yaml.Node{Kind: yaml.ScalarNode, Value: text}, v, path, f.tag)
			if len(d.problems) > 0 {
				t.Errorf("%s: %s: %v", path, text, d.problems)
			}
			if before, ok := made[v.Interface()]; ok {
				t.Errorf("%s: %s is the same as %s", path, text, before)
			}
			made[v.Interface()] = text
		}
	})
	for name, want := range map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError} {
		if got := (Log{Level: name}).SlogLevel(); got != want {
			t.Fatalf("SlogLevel = %v, want %v", got, want)
		}
	}
	c := &Config{ClaimCheck: &ClaimCheck{From: 5}}
	if got := c.SubscriberConfig().Payload.ClaimCheckFrom; got != 5 {
		t.Fatalf("ClaimCheckFrom = %d, want 5", got)
	}
}

// A route says what differs from the section publisher.
func TestPublisherOfARoute(t *testing.T) {
	c := &Config{Publisher: publisher.Config{MaxRequests: 3, TenantID: "a"}}
	config := c.PublisherConfig(ToGateway{Config: publisher.Config{TenantID: "b", PartialDelivery: publisher.PartialDeliveryIsSent}})
	testkit.Equal(t, []any{config.MaxRequests, config.TenantID, config.PartialDelivery}, []any{3, "b", publisher.PartialDeliveryIsSent})
}

// What a route of a file does not say, the section publisher does. What it says holds, also if that is the default.
func TestPublisherOfRoutesOfAFile(t *testing.T) {
	text := strings.Replace(small, "poison:", "  - {name: a, from: {nats: {subject: a}}, to: {gateway: {}}}\n"+
		"  - {name: b, from: {nats: {subject: b}}, to: {gateway: {max_requests: 5, partial_delivery: error}}}\npoison:", 1)
	text += "publisher: {max_requests: 3, partial_delivery: sent}\n"
	c := testkit.Must(Parse("agrimill.yaml", []byte(text), smallEnv))(t)
	for i, want := range []publisher.Config{
		{MaxRequests: 3, PartialDelivery: publisher.PartialDeliveryIsSent}, {MaxRequests: 5, PartialDelivery: publisher.PartialDeliveryIsError},
	} {
		got := c.PublisherConfig(*c.Routes[i+1].To.Gateway)
		if got.MaxRequests != want.MaxRequests || got.PartialDelivery != want.PartialDelivery {
			t.Errorf("route %s: %d requests, partial delivery %v; want %d, %v", c.Routes[i+1].Name, got.MaxRequests, got.PartialDelivery, want.MaxRequests, want.PartialDelivery)
		}
	}
}

// Certificates come from files, for every kind of connection.
func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	testkit.NewCertificate(t).Write(t, dir)
	file := filepath.Join(dir, "agrimill.yaml")
	tls := "tls: {ca_file: ca.pem, cert_file: cert.pem, key_file: key.pem, server_name: other.example}"
	text := strings.Replace(small, "  client_id:", "  "+tls+"\n  client_id:", 1)
	text = strings.Replace(text, `nats: {url: "nats://127.0.0.1:4222"}`, "nats: {"+tls+"}\n  lake: {kafka: {brokers: \"b:1\", "+tls+", sasl: {user: u, mechanism: SCRAM-SHA-256, password: \"${SECRET}\"}}}", 1)
	text = strings.Replace(text, "poison:", "  - {name: back, from: {kafka: {brokers: \"b:1\", topics: t, "+tls+"}}, to: {gateway: {}}}\npoison:", 1) +
		"dedup: {nats_kv: {" + tls + "}}\ndevices: {nats_kv: {" + tls + "}}\n"
	testkit.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	c, err := Load(file, smallEnv)
	testkit.NoError(t, err)

	client := testkit.Must(c.Gateway.ClientConfig())(t)
	farm := testkit.Must(c.Sinks["farm"].NATS.SinkConfig("farm"))(t)
	lake := testkit.Must(c.Sinks["lake"].Kafka.SinkConfig("lake"))(t)
	source := testkit.Must(c.Routes[1].From.Kafka.SourceConfig())(t)
	connection := testkit.Must(c.Sinks["lake"].Kafka.Connection())(t)
	reader := connection.ClientConfig()
	if farm.TLS == nil || len(client.TLS.Certificates) != 1 || client.TLS.RootCAs == nil || lake.TLS.ServerName != "other.example" {
		t.Errorf("the gateway has %+v, NATS %+v, Kafka %+v", client.TLS, farm.TLS, lake.TLS)
	}
	if !source.ClientConfig().Net.TLS.Enable || !reader.Net.SASL.Enable || reader.Net.SASL.SCRAMClientGeneratorFunc == nil {
		t.Errorf("the source has %+v, the reader %+v", source.ClientConfig().Net.TLS, reader.Net.SASL)
	}
	testkit.NoError(t, reader.Validate())

	testkit.NoError(t, os.Remove(filepath.Join(dir, "cert.pem")))
	for _, use := range []func() error{
		func() error { _, err := c.Gateway.ClientConfig(); return err },
		func() error { _, err := c.Sinks["farm"].NATS.SinkConfig(""); return err },
		func() error { _, err := c.Sinks["lake"].Kafka.SinkConfig(""); return err },
		func() error { _, err := c.Sinks["lake"].Kafka.Connection(); return err },
		func() error { _, err := c.Routes[1].From.Kafka.SourceConfig(); return err },
		func() error { _, err := c.Dedup.NATSKV.Connect(""); return err },
	} {
		if err := use(); !errors.Is(err, ErrTLS) {
			t.Fatalf("use() = %v, want ErrTLS", err)
		}
	}
	_, err = nats.Connection{NKeySeedFile: filepath.Join(dir, "none")}.Connect("x")
	if err == nil {
		t.Fatal("no error")
	}
}
