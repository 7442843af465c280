package router

import (
	"github.com/agrimill/agrimill/internal/testkit"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// Owners that hold nothing any more take no memory, however their reservations ended.
func TestMemoryStoreForgetsOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(NewMemoryStore(MemoryStoreConfig{}))(t)
		for i := range 300 {
			claim := Claim{
				Keys:  Keys{Delivery: KeyOf("d", strconv.Itoa(i/3)), Content: KeyOf("c", strconv.Itoa(i/3))},
				Owner: Owner{Session: strconv.Itoa(i)},
			}
			got, err := store.Reserve(t.Context(), claim, time.Minute)
			if err != nil || got.State != Reserved {
				t.Fatalf("state %d, %v", got.State, err)
			}
			switch i % 3 {
			case 0:
				err = store.Release(t.Context(), claim, got.Token)
			case 1:
				time.Sleep(time.Minute) // the next one takes it over
			case 2:
				err = store.Commit(t.Context(), claim, got.Token, time.Hour)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if n := len(store.reserved); n > 0 {
			t.Errorf("%d owners are remembered", n)
		}
	})
}
