// Package linttest holds the tests of the files for deployment: each is read by the
// library of the program that it is for, strictly, and what they say to each other
// has to agree. It has no code of its own, and is a module of its own, because those
// libraries are large. What agrimill itself says about them is in the tests of
// cmd/agrimill/deploy. The files are outside of this module, so go test does not see when
// they change: run it with -count 1, as make check STEP=deploy does.
package linttest
