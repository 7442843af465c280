// Package workers handles messages side by side in goroutines that are used again.
package workers

import (
	"sync"
	"sync/atomic"
)

// maxIdle is how many goroutines of a pool wait for a job at most. More are started when as
// many jobs are being done, and end with their jobs.
const maxIdle = 64

// Config configures a [Pool] of jobs of type J. Do, Go and Stop are required.
type Config[J any] struct {
	// Do does a job. It is called from several goroutines, and never waits for another job.
	Do func(J)
	// Go starts a goroutine, which ends with its job, or with Stop if it has none.
	Go func(func())
	// Stop is closed when no more jobs are to be taken.
	Stop <-chan struct{}
	// Ended is called once when the channel of [Read] is closed. nil: nothing is called.
	Ended func()
}

// Pool does each job at once, in a goroutine that has nothing else to do meanwhile. How many
// are done at a time is up to whoever gives them.
type Pool[J any] struct {
	config Config[J]
	jobs   <-chan J
	push   chan<- J // nil in a pool that reads
	idle   atomic.Int64
	ended  sync.Once
}

// New returns a Pool whose jobs come from [Pool.Push].
func New[J any](config Config[J]) *Pool[J] {
	jobs := make(chan J)
	return &Pool[J]{config: config, jobs: jobs, push: jobs}
}

// Push does a job. It does not block, so that it may be called under a lock. It must not be
// called after Stop was closed.
func (p *Pool[J]) Push(job J) {
	select {
	case p.push <- job:
	default:
		p.config.Go(func() { p.work(job, true) })
	}
}

// Read starts a Pool that does what comes through a channel. One of its goroutines always
// waits for the next job and does it itself: handing each job over would cost as much again
// as receiving it.
func Read[J any](jobs <-chan J, config Config[J]) {
	p := &Pool[J]{config: config, jobs: jobs}
	p.lead()
}

// lead starts a goroutine that waits for a job.
func (p *Pool[J]) lead() {
	p.idle.Add(1)
	p.config.Go(func() {
		var none J
		p.work(none, false)
	})
}

// work does a job, if it is given one, and then others, for as long as there are not enough
// goroutines that wait for one.
func (p *Pool[J]) work(job J, given bool) {
	for {
		if given {
			p.config.Do(job)
			if p.idle.Load() >= maxIdle {
				return
			}
			p.idle.Add(1)
		}
		select {
		case <-p.config.Stop:
			return
		case job, given = <-p.jobs:
		}
		if !given {
			p.ended.Do(func() {
				if p.config.Ended != nil {
					p.config.Ended()
				}
			})
			return
		}
		if p.idle.Add(-1) == 0 && p.push == nil {
			p.lead()
		}
	}
}
