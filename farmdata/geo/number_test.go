package geo

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/agrimill/agrimill/farmdata"
)

// TestAppendFloat: a number means what it is, in no more digits than it takes.
func TestAppendFloat(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 1_000_000 {
		f := math.Float64frombits(random.Uint64())
		switch i % 4 {
		case 1:
			f = float64(random.Int64N(1<<40)-1<<39) * math.Pow(10, -float64(random.IntN(10)))
		case 2:
			f = float64(random.Int64N(3600000000)-1800000000) / 1e7
		case 3:
			f = float64(random.IntN(1_000_000)) * 0.001
		}
		text := string(appendFloat(nil, f))
		if math.IsNaN(f) || math.IsInf(f, 0) {
			if text != "null" {
				t.Fatalf("%v is %s", f, text)
			}
			continue
		}
		if got, err := strconv.ParseFloat(text, 64); err != nil || math.Float64bits(got) != math.Float64bits(f) {
			t.Fatalf("%v is %s, which is %v, %v", f, text, got, err)
		}
		if shortest := strconv.FormatFloat(f, 'f', -1, 64); math.Abs(f) < 1e6 && math.Abs(f) > 1e-3 && text != shortest {
			t.Fatalf("%s, want %s", text, shortest)
		}
	}
}

// TestKeyValue: what is on a map is what Scaled returns, also if a scale is negative or tiny.
func TestKeyValue(t *testing.T) {
	t.Parallel()
	for _, scale := range []float64{-0.001, 0.01, 1e-10, 0, 1, 2.5, 1e300, 1e-310} {
		key, ok := keyIn(&farmdata.Column{Scale: scale}, "")
		for raw := int64(-5000); raw < 5000; raw++ {
			v := farmdata.Value{Column: &farmdata.Column{Scale: scale}, Raw: raw}
			if got := key.Value(v); !ok || got != v.Scaled() {
				t.Fatalf("%d times %v is %v, want %v", raw, scale, got, v.Scaled())
			}
		}
	}
	largest := farmdata.Value{Column: &farmdata.Column{Scale: 1, Offset: math.MaxInt64}, Raw: math.MaxInt32}
	if key, ok := keyIn(largest.Column, ""); !ok || key.Value(largest) < math.MaxInt64 || largest.Scaled() < math.MaxInt64 {
		t.Errorf("got %v and %v, want more than the largest offset", key.Value(largest), largest.Scaled())
	}
}
