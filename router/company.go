package router

import (
	"sync"
)

// company are handlers that share a source. When nothing passes at any of them, their messages wait in place, which in the end
// keeps the source from delivering more; as long as something passes somewhere, they make room.
type company struct {
	mu      sync.Mutex
	members int
	down    int
	up      chan struct{} // closed when not all of them are down; nil unless they are
}

func (c *company) join() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members++
}

// set notes that one of them is down now, or no longer.
func (c *company) set(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if down {
		c.down++
	} else {
		c.down--
	}
	switch all := c.down >= c.members; {
	case all && c.up == nil:
		c.up = make(chan struct{})
	case !all && c.up != nil:
		close(c.up)
		c.up = nil
	}
}

func (c *company) stuck() bool { return c.wait() != nil }

// wait returns a channel that is closed when not all of them are down any longer; nil if
// they are not.
func (c *company) wait() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}
