package endings

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// An option is what the limiters of a cell are made with.
type option struct {
	name  string
	opts  []rratelimiter.LimiterOption
	of    rratelimiter.RateType
	apart bool // several limiters are asked one after the other
}

func with(name string, opts ...rratelimiter.LimiterOption) option {
	return option{name: name, opts: opts}
}

// rate is the rate of the limiters.
var rate = rratelimiter.PerMinute(100)

func options() []option {
	perClient := rate
	perClient.Type = rratelimiter.PerClient
	ownPerClient := with("WithRate per client", rratelimiter.WithRate(perClient))
	ownPerClient.of = rratelimiter.PerClient
	return []option{
		with("no option"),
		{name: "one after the other", apart: true},
		with("WithRate", rratelimiter.WithRate(rate)),
		ownPerClient,
		with("WithEnforcedRate", rratelimiter.WithEnforcedRate(rate)),
		with("WithServerTime", rratelimiter.WithServerTime()),
		with("WithRecordFormat 3.13", rratelimiter.WithRecordFormat(rratelimiter.Redisson313)),
		with("WithRecordFormat 3.16", rratelimiter.WithRecordFormat(rratelimiter.Redisson316)),
		with("WithRecordFormat 3.21", rratelimiter.WithRecordFormat(rratelimiter.Redisson321)),
		with("WithRecordPerRequest", rratelimiter.WithRecordPerRequest()),
		with("WithGranularity", rratelimiter.WithGranularity(time.Second)),
		with("WithLease", rratelimiter.WithLease(time.Second)),
		with("WithDenyCache", rratelimiter.WithDenyCache(8)),
		with("WithFailFast", rratelimiter.WithFailFast()),
		with("WithInstalments", rratelimiter.WithInstalments()),
		with("WithMaxDebt", rratelimiter.WithMaxDebt(5)),
		with("WithFallback", rratelimiter.WithFallback(0.5)),
	}
}

func TestEachOptionIsAmongThem(t *testing.T) {
	files, err := filepath.Glob("../../../*.go")
	if err != nil || files == nil {
		t.Fatal(files, err)
	}
	var all []ast.Decl
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, file.Decls...)
	}
	tried := map[string]bool{}
	for _, o := range options() {
		name, _, _ := strings.Cut(o.name, " ")
		tried[name] = true
	}
	for _, d := range all {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !f.Name.IsExported() || f.Type.Results == nil {
			continue
		}
		made, _ := f.Type.Results.List[0].Type.(*ast.Ident)
		if made != nil && made.Name == "LimiterOption" && !tried[f.Name.Name] {
			t.Errorf("no method is tried with %s: it needs a row in options", f.Name.Name)
		}
	}
}
