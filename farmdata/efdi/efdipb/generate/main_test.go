package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

func TestGeneratedFileIsCurrent(t *testing.T) {
	t.Parallel()
	want := testkit.Must(generate(".."))(t)
	got := testkit.Must(os.ReadFile("../efdi.pb.go"))(t)
	if !bytes.Equal(got, want) {
		t.Error("efdi.pb.go is not what efdi.proto says: go run ./farmdata/efdi/efdipb/generate")
	}
}
