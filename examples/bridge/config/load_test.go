package config

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

const small = `gateway:
  base_url: http://127.0.0.1:8081
  token_url: http://127.0.0.1:8081/token
  client_id: ${ID}
  client_secret: ${SECRET}
sinks:
  farm:
    nats: {url: "nats://127.0.0.1:4222"}
routes:
  - name: farm-data
    from: {gateway: all}
    to: {sink: farm}
poison: {sink: farm}
`

// environment is a map as Options.Env.
func environment(values map[string]string) Options {
	return Options{Env: func(name string) string { return values[name] }}
}

var smallEnv = environment(map[string]string{"ID": "app", "SECRET": "hidden"})

func TestSmall(t *testing.T) {
	c, err := Parse("bridge.yaml", []byte(small), smallEnv)
	var problems *Problems
	if errors.As(err, &problems) {
		t.Fatal(problems)
	}
	require.NoError(t, err)
	require.Equal(t, "hidden", c.Gateway.ClientSecret.Reveal())
	t.Logf("%+v", *c)
	t.Logf("%+v", *c.Sinks["farm"].NATS)
}
