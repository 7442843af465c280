package timeline_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/timeline"
)

type entry struct {
	at   int
	what string
}

func compare(a, b entry) int { return cmp.Or(a.at-b.at, cmp.Compare(a.what, b.what)) }
func same(a, b entry) bool   { return a.what == b.what }

// holds is what the list says of a time.
func holds(list []entry, at int) (what string) {
	for _, e := range list {
		if e.at <= at {
			what = e.what
		}
	}
	return what
}

// In whatever order things are told, and however often they are repeated, what held at each time is known
// while the changes fit.
func TestAdd(t *testing.T) {
	const limit = 16
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		var all []entry
		what, changes := "A", 0
		for at := range 60 { // repeated each time
			if random.IntN(10) == 0 && changes < 4 {
				what, changes = string(rune('A'+random.IntN(3))), changes+1
			}
			all = append(all, entry{at, what})
		}
		var list []entry
		for _, e := range all { // in order: the limit costs nothing
			list, _ = timeline.Add(list, e, compare, same, limit)
			if !slices.IsSortedFunc(list, compare) || len(list) > limit {
				t.Fatalf("%v", list)
			}
		}
		for at := range 60 {
			if got, want := holds(list, at), holds(all, at); got != want {
				t.Errorf("seed %d: %s at %d, want %s: %v", seed, got, at, want, list)
			}
		}
		few := all[:limit]
		random.Shuffle(limit, func(i, j int) { few[i], few[j] = few[j], few[i] })
		list = nil
		for _, e := range append(slices.Clone(few), few...) { // twice
			list, _ = timeline.Add(list, e, compare, same, limit)
		}
		if slices.SortFunc(few, compare); !slices.Equal(list, few) {
			t.Errorf("seed %d: %v, want %v", seed, list, few)
		}
	}
}

func TestAddTwice(t *testing.T) {
	list, added := timeline.Add(nil, entry{1, "A"}, compare, same, 2)
	if again, twice := timeline.Add(list, entry{1, "A"}, compare, same, 2); !added || twice || len(again) != 1 {
		t.Errorf("%v %v %v", added, twice, again)
	}
	for i := range 4 { // all differ: the oldest goes
		list, _ = timeline.Add(list, entry{i + 2, fmt.Sprint(i)}, compare, same, 2)
	}
	testkit.Equal(t, list, []entry{{4, "2"}, {5, "3"}})
}
