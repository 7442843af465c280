package subscriber

// batches holds confirmations in order, cut into what goes into one request: all but the last batch
// are full. A batch has its memory to itself, so that one that is sent, or kept for its room, keeps
// nothing of another.
type batches struct {
	list [][]confirmation
	size int // confirmations in all of them
}

// add appends items to batches of at most limit; room makes one.
func (b *batches) add(limit int, room func() []confirmation, items ...confirmation) {
	b.size += len(items)
	limit = max(limit, 1)
	for len(items) > 0 {
		last := len(b.list) - 1
		if last < 0 || len(b.list[last]) >= limit {
			b.list = append(b.list, room())
			last++
		}
		n := min(len(items), limit-len(b.list[last]))
		b.list[last] = append(b.list[last], items[:n]...)
		items = items[n:]
	}
}

// take removes the oldest batch; there has to be one.
func (b *batches) take() []confirmation {
	first := b.list[0]
	b.list[0] = nil
	if b.list = b.list[1:]; len(b.list) == 0 {
		b.list = nil
	}
	b.size -= len(first)
	return first
}
