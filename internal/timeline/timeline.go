// Package timeline keeps a bounded list of what held from when on.
package timeline

import "slices"

// Add adds an item to a list in the order of compare, which begins with the time, and reports whether it was not there
// yet. If there are more than limit then, one goes that tells nothing: it stands between two that are the same as
// it is; without any, the oldest. list is not modified.
func Add[T any](list []T, item T, compare func(a, b T) int, same func(a, b T) bool, limit int) ([]T, bool) {
	at, found := slices.BinarySearchFunc(list, item, compare)
	if found {
		return list, false
	}
	list = slices.Insert(slices.Clone(list), at, item)
	if len(list) <= limit {
		return list, true
	}
	for i := 1; i < len(list)-1; i++ {
		if same(list[i-1], list[i]) && same(list[i], list[i+1]) {
			return slices.Delete(list, i, i+1), true
		}
	}
	return slices.Delete(list, 0, 1), true
}
