// Package fairlru has a cache of bounded size that several owners share: what is forgotten is what
// was not used for the longest time of the owner that has most, so that nobody loses anything by what an
// owner keeps that has more.
package fairlru

import (
	"container/list"
	"sync"
)

// Cache keeps values under keys. It is safe for concurrent use.
type Cache[K comparable, V any] struct {
	mu     sync.Mutex
	limit  int64
	size   int64
	items  map[K]*list.Element
	owners map[string]*owner
}

// owner has a list of *item, the last used first.
type owner struct {
	used list.List
	size int64
}

type item[K comparable, V any] struct {
	owner string
	key   K
	value V
	size  int64
}

// New returns an empty cache of values whose sizes add up to at most limit.
func New[K comparable, V any](limit int64) *Cache[K, V] {
	return &Cache[K, V]{limit: limit, items: map[K]*list.Element{}, owners: map[string]*owner{}}
}

// Get returns what is kept under a key, and notes that it was used.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.items[key]
	if !ok {
		return value, false
	}
	one := element.Value.(*item[K, V])
	c.owners[one.owner].used.MoveToFront(element)
	return one.value, true
}

// Put keeps a value of an owner under a key, in place of what was there. One that is larger than the limit
// is not kept.
func (c *Cache[K, V]) Put(owns string, key K, value V, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if element, ok := c.items[key]; ok {
		c.remove(element)
	}
	if size > c.limit {
		return
	}
	o := c.owners[owns]
	if o == nil {
		o = &owner{}
		c.owners[owns] = o
	}
	c.items[key] = o.used.PushFront(&item[K, V]{owns, key, value, size})
	o.size += size
	c.size += size
	for c.size > c.limit {
		c.remove(c.largest(owns).used.Back())
	}
}

// largest returns the owner that has most; the one with a name if no other has more.
func (c *Cache[K, V]) largest(name string) *owner {
	most := c.owners[name] // nil if it has nothing left
	for _, o := range c.owners {
		if most == nil || o.size > most.size {
			most = o
		}
	}
	return most
}

func (c *Cache[K, V]) remove(element *list.Element) {
	one := element.Value.(*item[K, V])
	o := c.owners[one.owner]
	o.used.Remove(element)
	o.size -= one.size
	c.size -= one.size
	delete(c.items, one.key)
	if o.used.Len() == 0 {
		delete(c.owners, one.owner)
	}
}

// Purge forgets everything.
func (c *Cache[K, V]) Purge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.items)
	clear(c.owners)
	c.size = 0
}

// Size returns the sum of the sizes.
func (c *Cache[K, V]) Size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}
