package subscriber

import ()

// many is how many items wait at once in these tests.
const many = 10_000

// scaled is a tenth of n with the race detector, which makes everything cost ten times as much.
func scaled(n int) int {
	if raceDetector {
		return n / 10
	}
	return n
}
