// Package speccheck holds docs/spec-coverage.md to its word. The page says for
// every row and every sentence of the specification where the client and
// gatewaytest honour it and which test shows it; the tests of this package fail
// when it names a test, an identifier or a file that does not exist, when a
// cell is empty, and when something of the specification is missing. It has no
// code of its own.
package speccheck
