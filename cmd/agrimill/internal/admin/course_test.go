package admin_test

import (
	"slices"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
)

// The course has the highest value of each minute, for an hour.
func TestCourse(t *testing.T) {
	var c admin.Course
	add := func(second, value int) { c.Add(noon.Add(time.Duration(second)*time.Second), value) }
	add(0, 1)
	add(30, 5)
	add(50, 2)
	add(60, 2)
	add(61, 3)
	if got := c.Values(); !slices.Equal(got, []int{5, 3}) {
		t.Errorf("got %v", got)
	}
	add(300, 0)
	if got := c.Values(); !slices.Equal(got, []int{0}) {
		t.Errorf("got %v, want nothing of the minutes in which nobody looked", got)
	}
	for minute := 6; minute < 100; minute++ {
		add(60*minute, minute)
	}
	if got := c.Values(); len(got) != 60 || got[0] != 40 || got[59] != 99 {
		t.Errorf("got %v", got)
	}
	add(60*60*24, 7)
	if got := c.Values(); !slices.Equal(got, []int{7}) {
		t.Errorf("got %v", got)
	}
}
