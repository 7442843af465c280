package admin

import (
	"sync"
	"time"
)

// courseMinutes is how far back a Course goes.
const courseMinutes = 60

// Course is the course of a number over the last hour: the highest value of each minute. It begins anew after a minute in
// which nobody looked. The zero value is empty. It is safe for concurrent use.
type Course struct {
	mu     sync.Mutex
	minute int64 // of the last value
	values []int // the last one is of that minute
}

// Add takes in the value of a time, which is not before the latest one.
func (c *Course) Add(at time.Time, value int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	minute := at.Unix() / 60
	last := len(c.values) - 1
	switch {
	case last >= 0 && minute == c.minute:
		c.values[last] = max(c.values[last], value)
	case last >= 0 && minute == c.minute+1:
		c.values = append(c.values[max(0, len(c.values)-courseMinutes+1):], value)
	default:
		c.values = []int{value}
	}
	c.minute = minute
}

// Values are the highest values of the minutes, the present one last; fewer than 60 in the first hour.
func (c *Course) Values() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]int{}, c.values...)
}
