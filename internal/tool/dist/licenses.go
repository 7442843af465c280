package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licenseFile matches the names under which modules have their licenses and notices.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|copyright|patents)([-._].*)?$`)

// licenses are texts, by module and version, and by the file's path in the module.
type licenses map[string]map[string]string

// linkedPackage is what `go list -deps -json` says of a package.
type linkedPackage struct {
	Dir      string
	Standard bool
	Module   *struct {
		Path, Version, Dir string
	}
}

// collect adds the licenses of listed packages. A module without one is an error.
func (l licenses) collect(listed []byte) error {
	dec := json.NewDecoder(bytes.NewReader(listed))
	for {
		var pkg linkedPackage
		if err := dec.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if pkg.Standard {
			continue
		}
		if pkg.Module == nil {
			return fmt.Errorf("%s is in no module", pkg.Dir)
		}
		name := strings.TrimSpace(pkg.Module.Path + " " + pkg.Module.Version)
		if err := l.add(name, pkg.Module.Dir, pkg.Dir); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l)) {
		if len(l[name]) == 0 {
			return fmt.Errorf("%s has no license file", name)
		}
	}
	return nil
}

// add adds the licenses in the folder of a package, and in those around it up to its module's.
func (l licenses) add(name, module, folder string) error {
	if l[name] == nil {
		l[name] = map[string]string{}
	}
	for {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if !entry.Type().IsRegular() || !licenseFile.MatchString(entry.Name()) || filepath.Ext(entry.Name()) == ".go" {
				continue
			}
			file := filepath.Join(folder, entry.Name())
			inside, err := filepath.Rel(module, file)
			if err != nil {
				return err
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			l[name][filepath.ToSlash(inside)] = string(bytes.TrimSpace(text))
		}
		up := filepath.Dir(folder)
		if folder == module || up == folder {
			return nil
		}
		folder = up
	}
}

// text returns all of them, each with what it is for.
func (l licenses) text() []byte {
	var out bytes.Buffer
	out.WriteString("Licenses and notices of what the binaries are made of.\n")
	for _, name := range slices.Sorted(maps.Keys(l)) {
		for _, file := range slices.Sorted(maps.Keys(l[name])) {
			fmt.Fprintf(&out, "\n%s\n%s: %s\n\n%s\n", strings.Repeat("=", 80), name, file, l[name][file])
		}
	}
	return out.Bytes()
}
