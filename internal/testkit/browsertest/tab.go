package browsertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/agrimill/agrimill/internal/testkit"
)

// Environment variables.
const (
	// BrowserVariable contains the path of the browser. Default: the usual names.
	BrowserVariable = "CHROME"
	// FolderVariable contains the folder for screenshots. Default: a temporary one of the test.
	FolderVariable = "SCREENSHOTS"
)

// find returns an installed browser. Without one the test fails.
func find(tb testing.TB) string {
	tb.Helper()
	names := []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless-shell", "chrome"}
	if path := os.Getenv(BrowserVariable); path != "" {
		names = []string{path}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	tb.Fatalf("no browser: install Chromium (Debian and Ubuntu: apt-get install chromium), or name its binary in %s; looked for %s",
		BrowserVariable, strings.Join(names, ", "))
	return ""
}

// Tab is a page in its own browser, for the goroutine of the test. Failures end the test.
type Tab struct {
	testing.TB
	context context.Context
	folder  string

	mu         sync.Mutex
	complaints []string
	requests   []string
}

// Open starts a browser and opens a page of 1360 by 1000 pixels, until the test ends.
func Open(tb testing.TB, url string) *Tab {
	tb.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(find(tb)), chromedp.DisableGPU,
		// A container has no user namespaces for a sandbox, and the pages are trusted.
		chromedp.NoSandbox,
		chromedp.Flag("lang", "en-GB"), chromedp.Flag("disable-dev-shm-usage", true),
	)
	allocated, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocated)
	t := &Tab{TB: tb, context: ctx, folder: os.Getenv(FolderVariable)}
	if t.folder == "" {
		t.folder = tb.TempDir()
	}
	tb.Cleanup(func() {
		timed, expire := context.WithTimeout(ctx, testkit.Patience)
		_ = chromedp.Cancel(timed) // waits for the browser
		expire()
		cancel()
		stop()
	})
	// The browser lives as long as the context of this call.
	if err := chromedp.Listen(ctx, t.listen); err != nil {
		tb.Fatalf("the browser does not start: %v", err)
	}
	Do(t, network.Enable, network.EnableParams{})
	Do(t, log.Enable, cdp.Empty{})
	Do(t, runtime.Enable, cdp.Empty{})
	t.Resize(1360, 1000, false)
	t.run(chromedp.Navigate(url))
	return t
}

// listen must be fast and must not call the browser.
func (t *Tab) listen(event any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		t.requests = append(t.requests, e.Request.URL)
	case *runtime.EventConsoleAPICalled:
		text := "console." + string(e.Type)
		for _, arg := range e.Args {
			text += " " + string(arg.Value)
		}
		t.complaints = append(t.complaints, text)
	case *runtime.EventExceptionThrown:
		t.complaints = append(t.complaints, exceptionText(e.ExceptionDetails))
	case *log.EventEntryAdded:
		t.complaints = append(t.complaints, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	}
}

func exceptionText(details *runtime.ExceptionDetails) string {
	text := details.Text
	if details.Exception != nil {
		text += " " + details.Exception.Description
	}
	return text
}

// Do executes a command of the DevTools protocol.
func Do[P, R any](t *Tab, command cdp.Command[P, R], params P) R {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.context, testkit.Patience)
	defer cancel()
	return testkit.Must(chromedp.Call(ctx, command, params))(t)
}

func (t *Tab) run(steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.context, testkit.Patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Picture("failed")
		t.Fatal(err)
	}
}

// Complaints returns what the page wrote to the console, its exceptions, and what
// the browser logged about it, such as violated policies and failed requests.
func (t *Tab) Complaints() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.complaints)
}

// Requests returns the requested URLs.
func (t *Tab) Requests() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.requests)
}

// Clean fails the test if the page requested anything outside of origin (http://host:port), or complained, except for
// complaints that contain one of the expected texts.
func (t *Tab) Clean(origin string, expected ...string) {
	t.Helper()
	for _, complaint := range t.Complaints() {
		if !slices.ContainsFunc(expected, func(e string) bool { return strings.Contains(complaint, e) }) {
			t.Errorf("the browser says: %s", complaint)
		}
	}
	requests := t.Requests()
	for _, url := range requests {
		// What the page itself has made does not leave the browser.
		if !strings.HasPrefix(strings.TrimPrefix(url, "blob:"), origin+"/") {
			t.Errorf("the page asked for %s", url)
		}
	}
	if len(requests) == 0 {
		t.Error("no request was seen")
	}
}

// Eval returns the value of a JavaScript expression as text.
func (t *Tab) Eval(expression string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.context, testkit.Patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// Wait waits until a JavaScript expression is true.
func (t *Tab) Wait(expression string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.context, testkit.Patience)
	defer cancel()
	// chromedp.Poll would compile code from text in the page, which a strict content
	// security policy forbids.
	promise := fmt.Sprintf(`new Promise((resolve) => {
		const look = () => { if (%s) resolve(true); else setTimeout(look, 20); };
		look();
	})`, expression)
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[bool](promise, chromedp.EvalAwaitPromise)); err != nil {
		t.Picture("failed")
		t.Fatalf("%v, waiting for %s; the browser says %q; the page shows:\n%s",
			err, expression, t.Complaints(), t.Eval("document.body.innerText"))
	}
}

// Reload loads the page again. An expression that is evaluated meanwhile ends with the page, so this waits.
func (t *Tab) Reload() {
	t.Helper()
	t.run(chromedp.Reload())
}

// Click clicks the first element that matches a CSS selector.
func (t *Tab) Click(selector string) {
	t.Helper()
	t.run(chromedp.Click(chromedp.CSS(selector)))
}

// Type types into the first element that matches a CSS selector.
func (t *Tab) Type(selector, text string) {
	t.Helper()
	t.run(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// Clear empties an input field.
func (t *Tab) Clear(selector string) {
	t.Helper()
	t.run(chromedp.Focus(chromedp.CSS(selector)))
	t.Eval(fmt.Sprintf(`document.querySelector(%q).select()`, selector))
	t.Keys("\b")
}

// Keys presses keys in the focused element.
func (t *Tab) Keys(keys string) {
	t.Helper()
	t.run(chromedp.KeyEvent(keys))
}

// Dark switches between a dark and a light color scheme.
func (t *Tab) Dark(on bool) {
	t.Helper()
	value := "light"
	if on {
		value = "dark"
	}
	Do(t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}},
	})
}

// Resize sets the size of the page, in CSS pixels, optionally emulating a phone.
func (t *Tab) Resize(width, height int64, phone bool) {
	t.Helper()
	params := emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: phone}
	if phone {
		params.DeviceScaleFactor = 2
	}
	Do(t, emulation.SetDeviceMetricsOverride, params)
}

// Picture saves a screenshot of the whole page as name.png.
func (t *Tab) Picture(name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.context, testkit.Patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.MkdirAll(t.folder, 0o755)
	}
	path := filepath.Join(t.folder, name+".png")
	if err == nil {
		err = os.WriteFile(path, png, 0o644)
	}
	if err != nil {
		t.Error("no picture:", err)
		return
	}
	t.Logf("picture: %s", path)
}
