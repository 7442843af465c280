//go:build !race && (browser || ha)

package command

// raceFlag has a program built as its packages already are for these tests.
const raceFlag = "-race=false"
