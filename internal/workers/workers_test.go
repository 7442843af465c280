package workers_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/workers"
)

// pool counts the goroutines of a pool, and what they have done.
type pool struct {
	stop    chan struct{}
	running sync.WaitGroup
	alive   atomic.Int64
	started atomic.Int64
	done    atomic.Int64
	ended   atomic.Int64
}

// config returns one whose jobs take an hour.
func (p *pool) config() workers.Config[int] {
	p.stop = make(chan struct{})
	return workers.Config[int]{
		Do: func(int) {
			time.Sleep(time.Hour)
			p.done.Add(1)
		},
		Go: func(work func()) {
			p.started.Add(1)
			p.alive.Add(1)
			p.running.Go(func() {
				defer p.alive.Add(-1)
				work()
			})
		},
		Stop:  p.stop,
		Ended: func() { p.ended.Add(1) },
	}
}

// Every job begins at once, however many are under way; few goroutines wait for the next one,
// those are used again, and all of them end.
func TestPool(t *testing.T) {
	const jobs = 1000
	for name, begin := range map[string]func(workers.Config[int]) func(int){
		"pushed": func(config workers.Config[int]) func(int) { return workers.New(config).Push },
		"read": func(config workers.Config[int]) func(int) {
			source := make(chan int)
			workers.Read(source, config)
			return func(job int) { source <- job }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p pool
				do := begin(p.config())
				began := time.Now()
				for i := range jobs {
					do(i)
				}
				if waited := time.Since(began); waited != 0 {
					t.Errorf("a job waited %v for others", waited)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				testkit.Equal(t, p.done.Load(), jobs)
				// Several may find room at the same moment.
				if idle := p.alive.Load(); idle < 64 || idle > 128 {
					t.Errorf("%d goroutines wait for a job, want about 64", idle)
				}

				before := p.started.Load()
				for i := range 32 {
					do(i)
				}
				synctest.Wait()
				testkit.Equal(t, p.started.Load(), before)
				close(p.stop)
				p.running.Wait() // also for those with jobs
				testkit.Equal(t, p.done.Load(), jobs+32)
				testkit.Equal(t, p.ended.Load(), 0)
			})
		})
	}
}

// The end of the channel is told once, while jobs are under way and others wait.
func TestReadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pool
		source := make(chan int)
		workers.Read(source, p.config())
		for i := range 10 {
			source <- i
		}
		time.Sleep(time.Hour)
		source <- 10
		close(source)
		synctest.Wait()
		testkit.Equal(t, p.ended.Load(), 1)
		p.running.Wait()
		testkit.Equal(t, p.done.Load(), 11)
		testkit.Equal(t, p.ended.Load(), 1)
	})
}
