package content_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/agrimill/agrimill/farmdata/content"
	"github.com/agrimill/agrimill/farmdata/efdi"
	"github.com/agrimill/agrimill/internal/testkit/farmdatatest"
)

// asked is a context that ends when it is asked for the time after left.
type asked struct {
	context.Context
	left int
}

func (a *asked) Err() error {
	if a.left--; a.left < 0 {
		return context.Canceled
	}
	return nil
}

// Whenever its context ends, Open ends at the next question, whatever it is reading, and the error is that of the context. Logs
// are read without it.
func TestOpenEndsWithContext(t *testing.T) {
	taskData := (`<ISO11783_TaskData VersionMajor="4">` + strings.Repeat(`<CTR A="CTR1" B="name"/>`, 2000) + `</ISO11783_TaskData>`)
	header := (`<TIM A="" D="4"><PTN A="" B=""/>` + strings.Repeat(`<DLV A="0043" B="" C="DET-1"/>`, 20) + `</TIM>`)
	archive := farmdatatest.Zip(t, "TASKDATA.XML", taskData, "TLG00001.XML", header, "TLG00001.BIN", "")
	nested := farmdatatest.Zip(t, "inner.zip", string(archive))
	folder := fstest.MapFS{"TASKDATA.XML": {Data: []byte(taskData)}, "TLG00001.XML": {Data: []byte(header)}}
	description := farmdatatest.Description(t)
	log := farmdatatest.TimeLog(t, 10_000)
	opened := func(b []byte) func(context.Context) (*content.Data, error) {
		return func(ctx context.Context) (*content.Data, error) {
			return content.Open(ctx, bytes.NewReader(b), int64(len(b)), content.Config{})
		}
	}
	for name, c := range map[string]struct {
		open     func(context.Context) (*content.Data, error)
		atLeast  int // questions
		withLogs bool
	}{
		"archive":            {opened(archive), 30, false},
		"nested archive":     {opened(nested), 30, false},
		"folder":             {func(ctx context.Context) (*content.Data, error) { return content.OpenFS(ctx, folder, content.Config{}) }, 30, false},
		"device description": {opened(description), 5, false},
		"time log":           {opened(log), 3, true},
		"time log by its type": {func(ctx context.Context) (*content.Data, error) {
			return content.OpenEFDI(ctx, bytes.NewReader(log), int64(len(log)), efdi.TimeLog, content.Config{})
		}, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			questions := 0
			for ; ; questions++ {
				ctx := &asked{t.Context(), questions}
				data, err := c.open(ctx)
				if err == nil {
					ctx.left = 0
					checkLogs(t, data, c.withLogs)
					break
				}
				if err != context.Canceled || errors.Is(err, content.ErrNotFarmData) || data != nil {
					t.Fatalf("after %d questions: got %v and %v, want %v", questions, data, err, context.Canceled)
				}
			}
			if questions < c.atLeast {
				t.Errorf("got %d questions, want at least %d", questions, c.atLeast)
			}
		})
	}
}

func checkLogs(t *testing.T, data *content.Data, want bool) {
	t.Helper()
	for _, log := range data.Sets[0].Logs {
		records, findings := farmdatatest.Read(t, log)
		if want && (len(records) == 0 || len(findings) > 0) {
			t.Errorf("got %d records and %v, want records only", len(records), findings)
		}
	}
}
