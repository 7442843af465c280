package linttest

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	deploy = ".."
	top    = "../../../.."
)

// must returns a function that returns value, or ends the test that it gets if there is an error.
func must[V any](value V, err error) func(*testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		ends(t, err)
		return value
	}
}

// ends ends the test if there is an error.
func ends(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, elements ...string) []byte {
	t.Helper()
	return must(os.ReadFile(filepath.Join(elements...)))(t)
}

// programConfig is what of agrimill's configuration other files have to agree with.
type programConfig struct {
	Gateway struct {
		BaseURL          string `json:"base_url"`
		TokenURL         string `json:"token_url"`
		ClientSecretFile string `json:"client_secret_file"`
	} `json:"gateway"`
	Sinks map[string]struct {
		NATS *struct {
			URL    string `json:"url"`
			Synced string `json:"synced"`
		} `json:"nats"`
		Kafka *struct {
			Brokers []string `json:"brokers"`
		} `json:"kafka"`
	} `json:"sinks"`
	Dedup struct {
		BBolt struct {
			Path string `json:"path"`
		} `json:"bbolt"`
	} `json:"dedup"`
	ClaimCheck struct {
		URL string `json:"url"`
	} `json:"claim_check"`
	Shutdown struct {
		Timeout string `json:"timeout"`
	} `json:"shutdown"`
	Admin struct {
		Address   string `json:"address"`
		TokenFile string `json:"token_file"`
	} `json:"admin"`
}

func parseProgramConfig(t *testing.T, data []byte) programConfig {
	t.Helper()
	var config programConfig
	ends(t, yaml.Unmarshal(data, &config))
	return config
}
