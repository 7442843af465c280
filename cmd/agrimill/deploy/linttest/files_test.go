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

func read(t *testing.T, elements ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return data
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
			URL        string `json:"url"`
			SyncAlways bool   `json:"sync_always"`
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
	if err := yaml.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	return config
}
