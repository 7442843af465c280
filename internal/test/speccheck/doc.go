// Package speccheck checks coverage.md, which lists for each row and each
// sentence of the specification where the client and gatewaytest implement it
// and which test shows it. The tests of this package fail when the list names a
// test, an identifier or a file that does not exist, when a cell is empty, and
// when a part of the specification is missing. The package has no code of its
// own.
package speccheck
