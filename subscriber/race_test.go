//go:build race

package subscriber

// raceDetector makes everything several times slower.
const raceDetector = true
