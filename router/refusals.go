package router

import (
	"sync"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
)

// refusedPause is the wait before a message is returned that the poison queue
// will not take however often it is asked.
var refusedPause = backoff.Policy{Initial: 10 * time.Second, Max: 10 * time.Minute}

// maxRefusals bounds how many refused messages are remembered. One that is
// forgotten is logged again.
const maxRefusals = 1024

// refusals counts how often each message was refused.
type refusals struct {
	mu     sync.Mutex
	counts map[string]int
	order  []string
}

// add counts one more for a message and returns how often it was refused before.
func (r *refusals) add(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, known := r.counts[id]
	if !known {
		if len(r.order) >= maxRefusals {
			delete(r.counts, r.order[0])
			r.order = r.order[1:]
		}
		if r.counts == nil {
			r.counts = make(map[string]int)
		}
		r.order = append(r.order, id)
	}
	r.counts[id] = n + 1
	return n
}
