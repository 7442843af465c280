package reminders_test

import (
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/reminders"
)

func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log reminders.Log
		if lasted := log.Over(); lasted != 0 {
			t.Errorf("nothing lasted %v", lasted)
		}
		for range 2 { // the second failure is reported like the first
			var told []time.Duration
			for range 3*60*2 + 20 {
				if lasted, due := log.Failed(); due {
					told = append(told, lasted)
				}
				time.Sleep(30 * time.Second)
			}
			want := []time.Duration{time.Minute, 5 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour}
			if !reflect.DeepEqual(told, want) {
				t.Errorf("told after %v, want %v", told, want)
			}
			if lasted := log.Over(); lasted != 190*time.Minute {
				t.Errorf("lasted %v", lasted)
			}
		}
		// Those that were missed are reported once.
		log.Failed()
		time.Sleep(100 * time.Minute)
		if lasted, due := log.Failed(); !due || lasted != 100*time.Minute {
			t.Errorf("after %v: %v", lasted, due)
		}
		if _, due := log.Failed(); due {
			t.Error("told twice")
		}
	})
}

func TestFields(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want watermill.LogFields
	}{
		{nil, watermill.LogFields{"lasted": time.Minute}},
		{&gateway.Error{Err: gateway.ErrClosed}, watermill.LogFields{"lasted": time.Minute}},
		{fmt.Errorf("x: %w", &gateway.Error{StatusCode: 404, ContentType: "text/html"}), watermill.LogFields{"lasted": time.Minute, "status": 404, "content_type": "text/html"}},
		{&gateway.Error{StatusCode: 502}, watermill.LogFields{"lasted": time.Minute, "status": 502}},
	} {
		if got := reminders.Fields(time.Minute+100*time.Millisecond, tt.err); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
	if got := reminders.Fields(0, nil); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}
