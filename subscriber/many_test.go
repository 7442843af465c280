package subscriber

import (
	"fmt"
	"testing"
	"time"
)

// many is how many items wait at once in these tests.
const many = 10_000

// scaled is a tenth of n with the race detector, which makes everything cost ten times as much.
func scaled(n int) int {
	if raceDetector {
		return n / 10
	}
	return n
}

// 10,000 payloads wait, those of every host in another way: downloads stay few, and when
// the hosts recover everything comes.
func TestManyWaitingDownloads(t *testing.T) {
	t.Parallel()
	const hosts, slots, ends = 1000, 8, 2 * time.Minute
	w := newDownloadWorld(t, slots)
	w.attempt = func(j *download) (downloadResult, time.Duration, int64) {
		if w.now.Sub(w.began) < ends {
			switch j.host.name[len(j.host.name)-1] % 5 {
			case 0:
				return downloadFailed, 20 * time.Millisecond, 0
			case 1:
				return downloadOK, time.Hour, 0 // hangs
			case 2:
				return downloadOK, time.Hour, 1 // drips
			case 3:
				return downloadBad, 20 * time.Millisecond, 0
			}
		}
		return downloadOK, time.Millisecond, 1 << 20
	}
	for i := range many {
		w.addOf(fmt.Sprint(i%100), fmt.Sprint(i%hosts))
	}
	w.run(ends)
	if w.most > 4*slots {
		t.Errorf("%d downloads at a time", w.most)
	}
	if w.ok == 0 {
		t.Error("nothing came meanwhile")
	}
	w.run(ends + time.Hour)
	if len(w.added) != 0 || len(w.q.hosts) != 0 || w.gone+w.unserved != 0 {
		t.Errorf("%d wait, %d hosts are remembered, %d were given up", len(w.added), len(w.q.hosts), w.gone+w.unserved)
	}
}
