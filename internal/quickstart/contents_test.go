package main

import (
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/demo"
)

// Each file of farm data has a line that says what is in it, and no other file has one.
func TestWriteContents(t *testing.T) {
	files, err := demo.LongAcre()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := writeContents(t.Context(), &b, files); err != nil {
		t.Fatal(err)
	}
	const want = `
taskdata_long_acre.zip: TaskData 4.2: 1 task, 1 device, 1 field, 1 log, 600 records, 1200 values, 2026-05-04T06:30:00 to 2026-05-04T06:39:59
timelog_long_acre.pb: EFDI time log: 1 log, 600 records, 1200 values, 2026-05-04T06:30:00Z to 2026-05-04T06:39:59Z
`
	if got := b.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	b.Reset()
	if err := writeContents(t.Context(), &b, []demo.File{{Name: "a.txt", Data: []byte("text")}}); err != nil || b.Len() > 0 {
		t.Errorf("got %q, %v, want nothing", b.String(), err)
	}
}
