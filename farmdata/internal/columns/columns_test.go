package columns_test

import (
	"testing"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/farmdata/internal/columns"
)

// TestLayouts: cells have in common what was made of one with their zone, columns and products, also if their values are in one slice.
func TestLayouts(t *testing.T) {
	t.Parallel()
	made := 0
	layouts := columns.Layouts[int]{Make: func(*farmdata.Cell) int { made++; return made }}
	a, b := new(farmdata.Column), new(farmdata.Column)
	values := make([]farmdata.Value, 2)
	for i, tt := range []struct {
		zone     int
		columns  []*farmdata.Column
		products []string
		want     int
	}{
		{1, []*farmdata.Column{a}, []string{"P"}, 1},
		{1, []*farmdata.Column{a}, []string{"P"}, 1},
		{2, []*farmdata.Column{a}, []string{"P"}, 2},
		{1, []*farmdata.Column{a}, []string{"P"}, 1},
		{1, []*farmdata.Column{b}, []string{"P"}, 3},
		{1, []*farmdata.Column{b}, []string{"Q"}, 4},
		{1, []*farmdata.Column{b, a}, []string{"Q"}, 5},
		{1, nil, nil, 6},
		{2, []*farmdata.Column{a}, []string{"P"}, 2},
		{1, nil, nil, 6},
	} {
		cell := farmdata.Cell{Zone: tt.zone, Values: values[:len(tt.columns)], Products: tt.products}
		for i, c := range tt.columns {
			values[i].Column = c
		}
		if got := layouts.Of(&cell); got != tt.want {
			t.Errorf("cell %d has layout %d, want %d", i, got, tt.want)
		}
	}
}
