package enum_test

import (
	"testing"

	"github.com/agrimill/agrimill/internal/enum"
)

type color int

var colors = []string{"red", "green", "blue"}

func TestTextAndParse(t *testing.T) {
	for i, name := range colors {
		var c color
		if err := enum.Parse(&c, []byte(name), colors); err != nil || c != color(i) {
			t.Errorf("%s: got %d, %v", name, c, err)
		}
		if got := enum.Text(c, colors); got != name {
			t.Errorf("got %s, want %s", got, name)
		}
	}
	c := color(1)
	err := enum.Parse(&c, []byte("Blue"), colors)
	if err == nil || err.Error() != `must be red, green or blue, not "Blue"` || c != 1 {
		t.Errorf("got %d, %v", c, err)
	}
	if got := enum.Text(color(7), colors); got != "unknown (7)" {
		t.Errorf("got %s", got)
	}
}
