package router

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

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
	counts *simplelru.LRU[string, int] // nil before the first
}

// add counts one more for a message and returns how often it was refused before.
func (r *refusals) add(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts, _ = simplelru.NewLRU[string, int](maxRefusals, nil) // it fails without a size
	}
	n, _ := r.counts.Peek(id)
	r.counts.Add(id, n+1)
	return n
}
