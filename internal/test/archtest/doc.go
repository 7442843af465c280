// Package archtest holds the tests of what spans packages: which package may
// import which, and that the Go code shown in the documentation compiles. It
// has no code of its own.
package archtest
