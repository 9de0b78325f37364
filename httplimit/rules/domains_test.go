package rules

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// domainsFile is the file of the guide.
const domainsFile = "testdata/envoy.yaml"

func TestDomainsAreUnderstood(t *testing.T) {
	data, err := os.ReadFile(domainsFile)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseFile("envoy.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	want := File{Domains: []Domain{{"shop", []Descriptor{
		{Key: "remote_address", HasRate: true, Rate: rratelimiter.PerSecond(10)},
		{Key: "remote_address", Value: "192.0.2.7", HasRate: true, Rate: rratelimiter.PerSecond(0)},
		{Key: "generic_key", Value: "all", HasRate: true, Rate: rratelimiter.PerMinute(60000), Lease: time.Second},
		{Key: "path", Value: "/export/*", HasRate: true, Rate: rratelimiter.PerMinute(100), Shared: true},
		{Key: "user", Following: []Descriptor{
			{Key: "method", HasRate: true, Rate: rratelimiter.PerMinute(100)},
			{Key: "method", Value: "GET", HasRate: true},
		}},
		{Key: "tenant", HasRate: true, Rate: rratelimiter.PerHour(1000), Shadow: true},
	}}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	got, err = ParseFile(
		"f",
		[]byte(
			"domains:\n  a: [{key: k, rate: 1/s, name: one, replaces: [two, three]}, {key: l, rate: 1/s, name: two}, {key: m, rate: 1/s, name: three}]\nlimits: {}",
		),
	)
	if d := got.Domains; err != nil || got.Limits == nil || len(d) != 1 || d[0].Descriptors[0].Name != "one" ||
		!reflect.DeepEqual(d[0].Descriptors[0].Replaces, []string{"two", "three"}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestEachFaultOfADomainHasItsLine(t *testing.T) {
	const head = "domains:\n  a:\n    - key: k\n      rate: 10/s\n"
	for _, test := range []struct{ name, text, want string }{
		{"no names", "domains:\n  - a", `2: the field "domains" must have the name of each domain`},
		{"an empty name", "domains:\n  \"\": [{key: k, rate: 1/s}]", `2: the name of a domain is empty`},
		{
			"no list", "domains:\n  a: {key: k, rate: 1/s}",
			`2: a: a domain must have a list of descriptors, each of which begins with "- key:"`,
		},
		{"no fields", "domains:\n  a: [k]", "2: a: a descriptor must have fields"},
		{"unknown field", head + "      unit: second", `5: a: unknown field "unit"; known are key, value, rate,`},
		{
			"postpaid without a rate",
			"domains:\n  a:\n    - key: k\n      postpaid: true\n      descriptors: [{key: l, rate: 1/s}]",
			"4: a: postpaid needs a rate in the same descriptor",
		},
		{
			"postpaid with a lease",
			"domains:\n  a:\n    - key: k\n      rate: 1/s\n      postpaid: true\n      lease: 100ms",
			"6: a: lease: a limit with postpaid takes no permits ahead, so it has no lease",
		},
		{
			"detailed without a rate",
			"domains:\n  a:\n    - key: k\n      detailed-metric: true\n      descriptors: [{key: l, rate: 1/s}]",
			"4: a: detailed-metric needs a rate in the same descriptor",
		},
		{"no key", "domains:\n  a:\n    - rate: 10/s", `3: a: a descriptor has no field "key"`},
		{"an empty key", "domains:\n  a:\n    - rate: 10/s\n      key: ''", "4: a: key is empty"},
		{"an empty value", head + "      value: ''", "5: a: value is empty"},
		{"a value that is a list", head + "      value: [1, 2]", "5: a: value must be a single value"},
		{
			"a wrong rate", "domains:\n  a:\n    - key: k\n      rate: 10",
			`4: a: rate: "10" is not of the form permits/interval`,
		},
		{
			"a rate per client",
			"domains:\n  a:\n    - key: k\n      rate: 10/s per client",
			`4: a: rate: "10/s per client"`,
		},
		{
			"nothing but a key", "domains:\n  a:\n    - key: k\n      value: v",
			"3: a: k=v: it has neither a rate nor descriptors",
		},
		{
			"an empty list below",
			"domains:\n  a:\n    - key: k\n      descriptors: []",
			"4: a: descriptors must have a list",
		},
		{
			"the same descriptor",
			head + "    - key: k\n      value: v\n      rate: 1/s\n    - key: k\n      rate: 2/s",
			"8: a: k: a descriptor with this key and value is in line 3 already",
		},
		{
			"shadow without a rate",
			"domains:\n  a:\n    - key: k\n      shadow: true\n      descriptors: [{key: l, rate: 1/s}]",
			"4: a: shadow needs a rate in the same descriptor",
		},
		{"no truth", head + "      shadow: 1", "5: a: shadow must be true or false"},
		{
			"shared without a pattern",
			head + "      value: v\n      shared: true",
			"6: a: shared: the value must have a *",
		},
		{"no lease", head + "      lease: long", `5: a: lease: "long" is not a positive number of whole milliseconds`},
		{"a lease of nothing", head + "      lease: 1us", `5: a: lease: "1us" is not a positive`},
		{
			"a long lease",
			head + "      lease: 101ms",
			"5: a: lease: with the rate 10/s: the lease 101ms is more than a tenth",
		},
		{
			"a lease without a rate", "domains:\n  a:\n    - key: k\n      rate: unlimited\n      lease: 10ms",
			"5: a: lease: it needs a rate",
		},
		{
			"a lease of a month", "domains:\n  a:\n    - key: k\n      rate: 1/month\n      lease: 10ms",
			"5: a: lease: it needs a rate, and not one for a month or a year",
		},
		{
			"a month without permits",
			"domains:\n  a:\n    - key: k\n      rate: 0/month",
			"4: a: rate: 0 permits, not 1 to",
		},
		{
			"an unknown name", head + "      replaces: [other]",
			`5: a: replaces: no descriptor of the domain has the name "other"`,
		},
		{"its own name", head + "      name: n\n      replaces: n", `6: a: replaces: "n" is the descriptor itself`},
		{
			"a list that contains itself", "domains:\n  a: &a\n    - key: k\n      descriptors: *a",
			"3: a: the file has more than 10000 descriptors",
		},
	} {
		f, err := ParseFile("envoy.yaml", []byte(test.text))
		var faults Faults
		if !errors.As(err, &faults) || len(faults) != 1 || f.Domains != nil {
			t.Errorf("%s: %v, %v", test.name, f, err)
		} else if got := err.Error(); !strings.HasPrefix(got, "envoy.yaml:"+test.want) {
			t.Errorf("%s: %s; want %s", test.name, got, test.want)
		}
	}
}

// A program that reads one section refuses a file without it.
func TestTheSectionOfTheProgramIsNeeded(t *testing.T) {
	if limits, err := Parse("f", []byte("domains: {}")); limits != nil || err == nil ||
		err.Error() != "f:1: "+noLimits {
		t.Errorf("%v, %v", limits, err)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("limits: {}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WatchDomains(t.Context(), file, Config{}, func([]Domain) { t.Error("domains were set") }); err == nil ||
		err.Error() != file+":1: "+noDomains {
		t.Error(err)
	}
}

func TestDomainsAreSetAgainWhenTheFileChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, file: filepath.Join(t.TempDir(), "f"), book: &book{}}
		var got []Domain
		expect := func(want string, logged ...string) {
			t.Helper()
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if len(got) != 1 || got[0].Name != want {
				t.Errorf("%v, want %s", got, want)
			}
			b.logged(logged...)
		}
		b.write("domains: {one: [{key: k, rate: 1/s}]}")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		err := WatchDomains(
			ctx, b.file, Config{Logger: slog.New(slog.NewTextHandler(b.book, nil))}, func(d []Domain) { got = d },
		)
		if err != nil {
			t.Fatal(err)
		}
		expect("one")
		b.write("domains: {two: [{key: k, rate: 1/s}]}")
		expect("two", "new rules are in force")
		b.write("domains: {three: [{key: k, rate: 1}]}")
		expect("two", "has faults")
		b.write("limits: {}")
		expect("two", "has no field")
	})
}

// In a folder, a new file is new content, and so is one that is gone.
func TestDomainsAreSetAgainWhenAFolderChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		var got atomic.Value // names of the domains
		expect := func(want string) {
			t.Helper()
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if got.Load() != want {
				t.Errorf("%s, want %s", got.Load(), want)
			}
		}
		write := func(name string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(folder, name+".yaml"), []byte("domain: "+name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("one")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		err := WatchDomains(ctx, folder, Config{Logger: slog.New(slog.DiscardHandler)}, func(domains []Domain) {
			names := ""
			for _, d := range domains {
				names += d.Name + " "
			}
			got.Store(names)
		})
		if err != nil {
			t.Fatal(err)
		}
		expect("one ")
		write("two")
		expect("one two ")
		if err := os.Remove(filepath.Join(folder, "one.yaml")); err != nil {
			t.Fatal(err)
		}
		expect("two ")
	})
}
