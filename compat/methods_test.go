package compat

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
)

// methods_test.go compares the table in methods.md with both sides: its methods are those
// of each release of Redisson, and the Go calls that it names exist.

const (
	methodsPage  = "methods.md"
	methodsBegin = "<!-- methods: checked by make proof -->"
	methodsEnd   = "<!-- /methods -->"
)

// A method is a method of Redisson in the table.
type method struct {
	since string // the first release that has it
	// the Go equivalents, such as Limiter.Acquire, Client.AllowAll, KeepState; none if there is
	// none
	calls []string
}

// methods are listed by signature, in the form of Process.Methods.
type methods map[string]method

var code = regexp.MustCompile("`([^`]+)`")

// listedMethods parses the table: signatures, first release, Go calls, and text.
func listedMethods(t *testing.T) methods {
	t.Helper()
	content, err := os.ReadFile(methodsPage)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(content), methodsBegin)
	table, _, ends := strings.Cut(rest, methodsEnd)
	if !found || !ends {
		t.Fatalf("%s has no table of methods", methodsPage)
	}
	listed := methods{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 2 || !strings.Contains(cells[1], "(") {
			continue
		}
		if len(cells) != 7 || strings.TrimSpace(cells[4])+strings.TrimSpace(cells[5]) == "" {
			t.Fatalf("a row needs signatures, first release, Go, and what is the same or what is not: %s", line)
		}
		var calls []string
		for _, match := range code.FindAllStringSubmatch(cells[3], -1) {
			calls = append(calls, match[1])
		}
		for _, match := range code.FindAllStringSubmatch(cells[1], -1) {
			signature := strings.ReplaceAll(match[1], " ", "")
			if _, twice := listed[signature]; twice {
				t.Errorf("%s is there twice", signature)
			}
			listed[signature] = method{strings.TrimSpace(cells[2]), calls}
		}
	}
	return listed
}

// compare fails the test unless a version has exactly the methods that the table lists for it, in
// any of their forms.
func (m methods) compare(t *testing.T, java *redisson.Process) {
	offered, err := java.Methods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for signature := range m {
		name, _, _ := strings.Cut(signature, "(")
		names[name] = true
	}
	for _, signature := range offered {
		name, _, usual := strings.Cut(signature, "(")
		if name = strings.TrimSuffix(name, "Async"); !names[name] {
			t.Errorf("%s has no row in %s", signature, methodsPage)
		} else if listed, found := m[signature]; usual && (!found || before(java.Version(), listed.since)) {
			t.Errorf("%s is in %s, by the table since %q", signature, java.Version(), listed.since)
		}
	}
	for signature, listed := range m {
		if !before(java.Version(), listed.since) && !slices.Contains(offered, signature) {
			t.Errorf("%s is not in %s, by the table since %s", signature, java.Version(), listed.since)
		}
	}
}

// configurationAlone checks what the page states about Java's unlink and rename, which leave the
// state behind, about Go's equivalents, and about a negative number of permits.
func configurationAlone(b *bench, name string) {
	rate := redisson.Rate{Permits: 5, Interval: time.Minute}
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, rate))
	want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 2))
	want(b, "Java's unlink", true)(b.java.Unlink(b.ctx, name))
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, rate))
	want(b, "Java's availablePermits after unlink", int64(3))(b.java.Available(b.ctx, name))
	b.must("Java's rename", b.java.Rename(b.ctx, name, name+":new"))
	want(b, "Java's availablePermits after rename", int64(5))(b.java.Available(b.ctx, name+":new"))
	want(b, "the keys left by rename", int64(2))(b.rdb.Exists(b.ctx, name, valueKey(name), permitsKey(name)).Result())

	l := b.limiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(5)))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 2))
	b.must("Go's Rename", l.Rename(b.ctx, name+":third"))
	want(b, "the keys left by Rename", int64(0))(b.rdb.Exists(b.ctx, name, valueKey(name), permitsKey(name)).Result())
	third := b.limiter(name + ":third")
	want(b, "Go's AvailablePermits after Rename", int64(1))(third.AvailablePermits(b.ctx))
	want(b, "Go's Delete", true)(third.Delete(b.ctx))
	want(b, "the keys left by Delete", int64(0))(
		b.rdb.Exists(b.ctx, name+":third", valueKey(name+":third"), permitsKey(name+":third")).Result(),
	)

	want(b, "Java's tryAcquire of -1", true)(b.java.TryAcquire(b.ctx, name+":new", -1))
	want(b, "what is free then", int64(6))(b.java.Available(b.ctx, name+":new"))
	if _, err := b.limiter(name+":new").TryAcquire(b.ctx, -1); !errors.Is(err, rratelimiter.ErrInvalidPermits) {
		b.Fatalf("Go's TryAcquire of -1: %v", err)
	}
}

// TestTheTableNamesCallsThatExist looks up each Go call of the table.
func TestTheTableNamesCallsThatExist(t *testing.T) {
	exported := map[string]bool{}
	for _, of := range []reflect.Type{
		reflect.TypeFor[*rratelimiter.Limiter](),
		reflect.TypeFor[*rratelimiter.Client](),
	} {
		for i := range of.NumMethod() {
			exported[of.Elem().Name()+"."+of.Method(i).Name] = true
		}
	}
	for _, of := range []reflect.Type{reflect.TypeFor[rratelimiter.Rate](), reflect.TypeFor[rratelimiter.State]()} {
		for i := range of.NumField() {
			exported[of.Name()+"."+of.Field(i).Name] = true
		}
	}
	for _, folder := range []string{"..", "../snapshot"} {
		for name := range functions(t, folder) {
			exported[name] = true
		}
	}
	for signature, listed := range listedMethods(t) {
		for _, call := range listed.calls {
			if !exported[call] {
				t.Errorf("%s: there is no %s", signature, call)
			}
		}
	}
}

// functions returns the exported functions and constants of the package in a folder. Outside the
// root package, the package name comes first.
func functions(t *testing.T, folder string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no Go files in %s (%v)", folder, err)
	}
	names := map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		prefix := ""
		if folder != ".." {
			prefix = file.Name.Name + "."
		}
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv == nil && decl.Name.IsExported() {
					names[prefix+decl.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					if values, ok := spec.(*ast.ValueSpec); ok {
						for _, name := range values.Names {
							names[prefix+name.Name] = true
						}
					}
				}
			}
		}
	}
	return names
}
