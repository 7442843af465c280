//go:build race

package publisher_test

// raceDetector has a sync.Pool drop at random what it is given.
const raceDetector = true
