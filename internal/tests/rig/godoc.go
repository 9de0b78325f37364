package rig

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Docs returns the doc comments of a folder's package: of functions ("Per"), of methods and fields
// ("Limit.Penalty"), and of the package ("").
func Docs(t *testing.T, folder string) map[string]string {
	t.Helper()
	docs := map[string]string{}
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || files == nil {
		t.Fatal(folder, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		docs[""] += file.Doc.Text()
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				of := ""
				if d.Recv != nil {
					of = strings.TrimPrefix(string(text[d.Recv.List[0].Type.Pos()-1:d.Recv.List[0].Type.End()-1]),
						"*") + "."
				}
				docs[of+d.Name.Name] = d.Doc.Text()
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					s, ok := spec.(*ast.TypeSpec)
					if !ok {
						continue
					}
					if of, ok := s.Type.(*ast.StructType); ok {
						for _, f := range of.Fields.List {
							for _, field := range f.Names {
								docs[s.Name.Name+"."+field.Name] = f.Doc.Text() + f.Comment.Text()
							}
						}
					}
				}
			}
		}
	}
	return docs
}

// TooLong reports whether the doc comment of an option has more than 15 lines: what it promises,
// costs and does not combine with. Mechanisms are in docs/options.md.
func TooLong(doc string) bool { return strings.Count(doc, "\n") > 15 }

var (
	sentence  = regexp.MustCompile(`[^.:]*cannot be combined with[^.]*\.`)
	qualifier = regexp.MustCompile(`\b(rratelimiter|Limit)\.`)
)

// SaysNotWith reports whether a sentence of a doc comment says that its option cannot be combined
// with the others.
func SaysNotWith(doc string, others ...string) bool {
	doc = qualifier.ReplaceAllString(strings.Join(strings.Fields(doc), " "), "")
	return slices.ContainsFunc(sentence.FindAllString(doc, -1), func(said string) bool {
		return !slices.ContainsFunc(others, func(other string) bool {
			return !regexp.MustCompile(`(^|[^\w-])` + regexp.QuoteMeta(other) + `($|[^\w-])`).MatchString(said)
		})
	})
}

// Refused returns the smallest sets of two and three options that are refused.
func Refused(options []string, refused func(set ...string) bool) (sets [][]string) {
	add := func(set ...string) {
		known := slices.ContainsFunc(sets, func(s []string) bool {
			return !slices.ContainsFunc(s, func(o string) bool { return !slices.Contains(set, o) })
		})
		if !known && refused(set...) {
			sets = append(sets, set)
		}
	}
	for i, one := range options {
		for _, two := range options[i+1:] {
			add(one, two)
		}
	}
	for i, one := range options {
		for j, two := range options[i+1:] {
			for _, three := range options[i+j+2:] {
				add(one, two, three)
			}
		}
	}
	return sets
}
