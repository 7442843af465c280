//go:build !race

package router_test

// raceDetector makes everything several times slower.
const raceDetector = false
