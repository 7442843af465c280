// Command yield makes a build in which goroutines give way at random places, so that tests meet orders
// of goroutines that seldom happen otherwise. Before each statement of the packages that sends, receives,
// selects, locks, unlocks, waits or starts a goroutine, it puts a call that lets other goroutines run, a
// few times or not at all. The clock is left alone, as bubbles of testing/synctest want.
//
//	go run ./internal/tool/yield -o DIR ./subscriber ./router
//	YIELD_SEED=7 go test -overlay DIR/overlay.json -race ./subscriber ./router
//
// The files keep their lines. YIELD_SEED (0) chooses where goroutines give way.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	dir := flag.String("o", "", "folder for overlay.json and the files that it names")
	flag.Parse()
	if *dir == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: yield -o DIR PACKAGE...")
		os.Exit(2)
	}
	if err := write(*dir, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "yield:", err)
		os.Exit(1)
	}
}

// write writes the overlay of some folders with Go files to dir.
func write(dir string, packages []string) error {
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for i, pkg := range packages {
		pkg, err := filepath.Abs(pkg)
		if err != nil {
			return err
		}
		files, err := instrumented(pkg)
		if err != nil {
			return err
		}
		for name, text := range files {
			replacement := filepath.Join(dir, fmt.Sprintf("%d_%s", i, name))
			if err := os.WriteFile(replacement, text, 0o600); err != nil {
				return err
			}
			overlay.Replace[filepath.Join(pkg, name)] = replacement
		}
	}
	text, err := json.MarshalIndent(overlay, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600)
}

// instrumented returns the files of a package with what is put into them, and one more.
func instrumented(dir string) (map[string][]byte, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	files, name, next := map[string][]byte{}, "", 0
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files[filepath.Base(path)], name, next, err = instrument(text, next)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no Go files", dir)
	}
	files["yield_generated.go"] = fmt.Appendf(nil, giveWay, name)
	return files, nil
}

// instrument puts calls into the text of a file, the first of which has the number next. It returns the
// name of the package, and the number after the last one, too.
func instrument(text []byte, next int) (changed []byte, pkg string, after int, err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, "", 0, err
	}
	places := map[int]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		var list []ast.Stmt
		switch node := node.(type) {
		case *ast.BlockStmt:
			list = node.List
		case *ast.CaseClause:
			list = node.Body
		case *ast.CommClause:
			list = node.Body
		}
		for _, statement := range list {
			if meetsOthers(statement) {
				places[files.Position(statement.Pos()).Offset] = true
			}
		}
		return true
	})
	begin := 0
	for _, place := range slices.Sorted(maps.Keys(places)) {
		changed = append(changed, text[begin:place]...)
		changed = fmt.Appendf(changed, "yieldGiveWay(%d); ", next)
		begin = place
		next++
	}
	return append(changed, text[begin:]...), file.Name.Name, next, nil
}

// meetsOthers reports whether a statement itself, not the blocks in it, does what other goroutines notice.
func meetsOthers(statement ast.Stmt) (meets bool) {
	ast.Inspect(statement, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause: // what is in them is looked at by itself
			return false
		case *ast.GoStmt, *ast.SendStmt, *ast.SelectStmt:
			meets = true
		case *ast.UnaryExpr:
			meets = meets || node.Op == token.ARROW
		case *ast.CallExpr:
			switch called := node.Fun.(type) {
			case *ast.Ident:
				meets = meets || called.Name == "close"
			case *ast.SelectorExpr:
				meets = meets || slices.Contains(meetings, called.Sel.Name)
			}
		}
		return !meets
	})
	return meets
}

// meetings are the methods of what goroutines share: sync, sync/atomic, and functions that end a context.
var meetings = []string{
	"Lock", "Unlock", "RLock", "RUnlock", "TryLock", "Wait", "Done", "Go", "Do", "Signal", "Broadcast",
	"Load", "Store", "Swap", "CompareAndSwap", "AfterFunc", "Stop", "Reset",
}

// giveWay is the file that each package gets. A quarter of the calls let others run once, one in 32 up to
// 64 times, which is long for whoever waits and takes no time of the clock.
const giveWay = `package %s

import (
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
)

var (
	yieldSeed, _ = strconv.ParseUint(os.Getenv("YIELD_SEED"), 10, 64)
	yieldCalls   atomic.Uint64
)

func yieldGiveWay(place uint64) {
	x := yieldSeed<<40 + place<<20 + yieldCalls.Add(1) // splitmix64 of these
	x *= 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	times := uint64(0)
	switch {
	case x%%32 == 0:
		times = 1 + x>>8%%64
	case x%%4 == 0:
		times = 1
	}
	for range times {
		runtime.Gosched()
	}
}
`
