package subscriber

import "sync"

// asideSet holds the UUIDs of messages that are about to be nacked and then to be
// left alone.
type asideSet struct {
	mu    sync.Mutex
	uuids map[string]struct{}
}

func (a *asideSet) add(uuid string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.uuids == nil {
		a.uuids = make(map[string]struct{})
	}
	a.uuids[uuid] = struct{}{}
}

func (a *asideSet) take(uuid string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.uuids[uuid]
	delete(a.uuids, uuid)
	return ok
}
