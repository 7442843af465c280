package subscriber

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A message that is put off comes at once when its wait is ended, before or after it is nacked.
func TestWaitOfAMessageIsEnded(t *testing.T) {
	for name, pause := range map[string]time.Duration{"before it is nacked": 0, "after it is nacked": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newResyncWorld(t, Config{Order: Unordered})
				messages := testkit.Must(w.Subscribe(t.Context(), AllData))(t)
				w.arrive(1)
				msg := w.next(messages)
				wait := msgctx.NackOf(msg.Context()).After(time.Hour)
				if pause == 0 {
					wait.End()
				}
				msg.Nack()
				if pause > 0 {
					time.Sleep(pause)
					wait.End()
				}
				began := time.Now()
				w.next(messages).Ack()
				if waited := time.Since(began); waited > 0 {
					t.Errorf("it came after %v", waited)
				}
				wait.End() // it is over
			})
		})
	}
}
