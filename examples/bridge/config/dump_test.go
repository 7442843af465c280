package config

import "testing"

func TestDump(t *testing.T) {
	_, err := Load("testdata/broken.yaml", smallEnv)
	t.Log("\n" + err.Error())
}
