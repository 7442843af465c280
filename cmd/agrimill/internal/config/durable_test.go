package config

import (
	"strings"
	"testing"
)

// A route with durable: synced needs somebody who has said when that is, of its sink and of the poison queue.
func TestDurable(t *testing.T) {
	with := func(sink, route string) string {
		text := strings.Replace(small, `{url: "nats://127.0.0.1:4222"}`, `{url: "nats://127.0.0.1:4222"`+sink+`}`, 1)
		return strings.Replace(text, "- name: ", "- "+route+"\n    name: ", 1)
	}
	for _, synced := range []string{"always", "2m", "replicas, replicas: 3"} {
		if c := parse(t, with(", synced: "+synced, "durable: synced"), smallEnv); c.Routes[0].Durable.String() != "synced" {
			t.Errorf("%s: durable %s", synced, c.Routes[0].Durable)
		}
	}
	for _, c := range []struct{ sink, want string }{
		{"", "routes[0].durable: is not known to come true"},
		{", synced: replicas", "sinks.farm.nats.synced: is replicas, and replicas is less than 3"},
		{", synced: soon", "must be always, replicas, or the interval as a duration"},
	} {
		if got := problemsOf(t, with(c.sink, "durable: synced"), smallEnv).Error(); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %s", c.sink, got, c.want)
		}
	}
}
