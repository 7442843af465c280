// Package browsertest opens pages of this machine in a headless Chromium, for
// tests of pages: it clicks, types and waits, takes pictures, and knows what the
// browser complained about and what it asked for.
//
// The tests that use it have the build tag browser, so that all others need no
// browser.
package browsertest
