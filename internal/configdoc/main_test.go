package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// top is the folder with go.mod, seen from here.
var top = filepath.Join("..", "..")

// TestPageIsCurrent holds docs/configuration.md against the source.
func TestPageIsCurrent(t *testing.T) {
	want, err := generate(top)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(top, filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		gotLines, wantLines := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
		for i, line := range wantLines {
			if i >= len(gotLines) || gotLines[i] != line {
				t.Fatalf("%s is not current from line %d on: run `go run ./internal/configdoc`\nwant %s", page, i+1, line)
			}
		}
		t.Fatalf("%s is not current: run `go run ./internal/configdoc`", page)
	}
}

// Every package and struct that the page is about is there, with documented
// fields.
func TestPageIsWhole(t *testing.T) {
	text, err := generate(top)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"### gateway.Config", "### gateway.RetryConfig", "### publisher.Config", "### subscriber.Config", "### subscriber.PayloadConfig",
		"### subscriber.ConfirmConfig", "### router.Config", "### router.Route", "### router.RetryConfig", "### router.DedupConfig",
		"### router.PoisonConfig", "### boltstore.Config", "### nats.Config", "### kvstore.Config", "### poisonqueue.Config",
		"### kafka.Config", "### blob.Config", "### claimcheck.Config", "### logsink.Config", "### cloudevents.Config",
		"| `ClaimCheck` |", "`DefaultCloseTimeout` (30 s)",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q", want)
		}
	}
	for name := range strings.SplitSeq(string(text), "\n") {
		if strings.HasSuffix(name, "|  |") {
			t.Errorf("no meaning: %s", name)
		}
	}
}

func TestRows(t *testing.T) {
	p := &pkg{consts: map[string]string{"DefaultWait": "2 * time.Minute"}}
	const source = `package p

type C struct {
	// Wait is how long. Default [DefaultWait], see [other.Thing] | more.
	Wait time.Duration
	// Both log in.
	User, Password string
	Token          *string
	hidden         int
	Map            map[string]func(a, b int) error // of things
}
`
	file, err := parser.ParseFile(token.NewFileSet(), "", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	s := file.Decls[0].(*ast.GenDecl).Specs[0].(*ast.TypeSpec).Type.(*ast.StructType)
	var got []string
	for _, r := range p.rows(s) {
		got = append(got, strings.Join(r.names, ",")+"; "+strings.Join(r.types, ",")+"; "+r.meaning)
	}
	want := []string{
		"`Wait`; `time.Duration`; Wait is how long. Default `DefaultWait` (2 min), see `other.Thing` \\| more.",
		"`User`,`Password`,`Token`; `string`,`*string`; Both log in.",
		"`Map`; `map[string]func(a, b int) error`; of things",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
