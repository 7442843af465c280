// Package browsertest opens local pages in a headless Chromium, for
// tests of pages: it clicks, types and waits, takes screenshots, and records the
// browser's complaints and requests.
//
// The tests that use it have the build tag browser, so that all others need no
// browser.
package browsertest
