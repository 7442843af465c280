// Package browsertest opens local pages in a headless Chromium, for tests of pages with the build tag browser.
package browsertest
