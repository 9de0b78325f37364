package rules

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// theirFolder has files in the format of envoyproxy/ratelimit.
const theirFolder = "testdata/envoyproxy"

// A folder of files of envoyproxy/ratelimit is read as it is. What is read is written in the format
// of this project, and read again as the same.
func TestFilesOfEnvoyproxyAreUnderstood(t *testing.T) {
	got, err := Load(theirFolder)
	if err != nil {
		t.Fatal(err)
	}
	want := []Domain{{"mail", []Descriptor{
		{Key: "message_type", Value: "offer", Following: []Descriptor{
			{Key: "to_number", HasRate: true, Rate: rratelimiter.Rate{Permits: 5, Interval: 7 * 24 * time.Hour}},
		}},
		{Key: "to_number", HasRate: true, Rate: rratelimiter.Rate{Permits: 100, Interval: 24 * time.Hour}},
		{Key: "sender", HasRate: true, Quota: Quota{Permits: 20000, Period: "month"}, DetailedMetric: true},
	}}, {"edge/shop", []Descriptor{
		{Key: "remote_address", HasRate: true, Rate: rratelimiter.PerSecond(10)},
		{Key: "remote_address", Value: "192.0.2.7", HasRate: true},
		{
			Key: "path", Value: "/export/*", HasRate: true, Rate: rratelimiter.PerMinute(100),
			Shared: true, Shadow: true, ValueToMetric: true,
		},
		{Key: "user", Following: []Descriptor{
			{Key: "method", HasRate: true, Rate: rratelimiter.PerHour(6000), Name: "any method"},
			{
				Key: "method", Value: "GET", HasRate: true, Quota: Quota{Permits: 1_000_000, Period: "year"},
				Replaces: []string{"any method"},
			},
		}},
		{Key: "health", HasRate: true},
	}}}
	if !reflect.DeepEqual(got.Domains, want) || got.Limits != nil {
		t.Errorf("%+v\nwant %+v", got.Domains, want)
	}
	text, err := Format(got.Domains)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseFile("f", text)
	if err != nil || !reflect.DeepEqual(again.Domains, want) || again.Findings != nil {
		t.Errorf("%s%v, %+v", text, err, again)
	}
}

// Findings stand in the order of the file, each where the field stands first.
func TestFindingsAreInTheOrderOfTheFile(t *testing.T) {
	f, err := ParseFile("f", []byte(`domain: a
descriptors:
  - key: k
    rate_limit:
      unit: minute
      requests_per_unit: 1
    descriptors:
      - key: l
        rate_limit:
          unit: minute
          requests_per_unit: 1
          name: m
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, one := range f.Findings {
		got = append(got, fmt.Sprint(one.Line, " ", one.Field))
	}
	want := "1 domain, 2 descriptors, 3 key, 4 rate_limit, 5 unit: minute, 6 requests_per_unit, 12 name"
	if strings.Join(got, ", ") != want {
		t.Errorf("%q, want %s", got, want)
	}
}

// A mapping can take over fields of others (<<), as in YAML 1.1. Its own fields have precedence,
// and of two others the first one.
func TestFieldsThatAreMerged(t *testing.T) {
	f, err := ParseFile("f", []byte(`
domain: a
descriptors:
  - &base
    key: k
    shadow_mode: true
    rate_limit: &limit {unit: hour, requests_per_unit: 4, name: n}
  - <<: *base
    key: l
    shadow_mode: null
  - key: m
    rate_limit:
      <<: [&day {unit: day}, *limit]
      requests_per_unit: 9
  - <<: {<<: *base, value: v}
    rate_limit: null
`))
	if err != nil {
		t.Fatal(err)
	}
	hourly := rratelimiter.Rate{Permits: 4, Interval: time.Hour}
	want := []Descriptor{
		{Key: "k", HasRate: true, Rate: hourly, Shadow: true, Name: "n"},
		{Key: "l", HasRate: true, Rate: hourly, Name: "n"},
		{Key: "m", HasRate: true, Rate: rratelimiter.Rate{Permits: 9, Interval: 24 * time.Hour}, Name: "n"},
		{Key: "k", Value: "v", HasRate: true, Rate: rratelimiter.Unlimited},
	}
	if got := f.Domains[0].Descriptors; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	for _, one := range f.Findings {
		if one.Field == "<<" && !one.Ignored && one.Line == 8 {
			return
		}
	}
	t.Errorf("no finding for << in line 8: %+v", f.Findings)
}

// Each field has a finding: what it does here, or why it does nothing.
func TestFindingsOfEnvoyproxysFields(t *testing.T) {
	f, err := Load(theirFolder)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Finding{}
	for _, one := range f.Findings {
		found[one.Field] = one
	}
	none, err := ParseFile("f",
		[]byte("domain: a\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 0}}]"))
	if found := none.Findings; err != nil ||
		!slices.ContainsFunc(found, func(f Finding) bool { return f.Field == "unit: year" }) {
		t.Errorf("%v: no finding for the unit of a limit that refuses all: %+v", err, found)
	}
	ignored := map[string]bool{"metadata": true, "quota_mode": true, "replaces burst": true}
	for _, field := range append(
		theirFields, "unit: second", "unit: minute", "unit: hour", "unit: day", "unit: week", "unit: month",
		"unit: year",
		"neither rate_limit nor descriptors", "replaces burst",
	) {
		one, known := found[field]
		switch {
		case field == "unit" || field == "quota_mode": // the first has a finding for each unit, the other is a fault
		case !known:
			t.Errorf("there is no finding for %s", field)
		case one.Ignored != ignored[field] || one.Why == "" || one.Line < 1 ||
			!strings.HasPrefix(one.File, theirFolder):
			t.Errorf("%+v", one)
		}
	}
	f, err = ParseFile("f", []byte(`
domain: a
shadow_mode: true
descriptors:
  - {key: k, unit: second, shadow_mode: true, detailed_metric: true, descriptors: [{key: l, rate_limit: {unit: hour}}]}
  - {key: m, quota_mode: false, value: null, rate_limit: {unit: month, shadow_mode: true}}
  - {key: n, rate_limit: null, descriptors: }
  - {key: o, rate_limit: {unlimited: true, unit: fortnight, requests_per_unit: 5}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"shadow_mode in the file 3", "unit in a descriptor 5", "shadow_mode without rate_limit 5",
		"detailed_metric without rate_limit 5", "shadow_mode in rate_limit 6",
	}
	var got []string
	for _, one := range f.Findings {
		if one.Ignored {
			got = append(got, one.Field+" "+string(rune('0'+one.Line)))
		}
	}
	for _, one := range want {
		if !strings.Contains("\n"+strings.Join(got, "\n")+"\n", "\n"+one+"\n") {
			t.Errorf("%q is not among %q", one, got)
		}
	}
	refuses := rratelimiter.PerSecond(0)
	if d := f.Domains[0].Descriptors; len(got) != len(want) || d[0].HasRate || d[0].Shadow ||
		d[0].Following[0].Rate != (rratelimiter.Rate{
			Interval: time.Hour,
		}) || d[1].Rate != refuses || d[1].Shadow || d[1].Value != "" || !d[2].HasRate ||
		d[2].Rate != rratelimiter.Unlimited ||
		!d[3].HasRate || d[3].Rate != rratelimiter.Unlimited {
		t.Errorf("%q, %+v", got, d)
	}
}

func TestEachFaultOfEnvoyproxysFileHasItsLine(t *testing.T) {
	const head = "domain: a\ndescriptors:\n  - key: k\n"
	const limit = head + "    rate_limit:\n"
	for _, test := range []struct{ name, text, want string }{
		{
			"no domain",
			"descriptors: []",
			"1: domain is missing or empty; a file that begins with \"domain:\" has the format",
		},
		{"an empty domain", "domain: ''\ndescriptors: []", "1: domain is missing"},
		{"a list as a domain", "domain: [a]", "1: domain must be a single value"},
		{"limits of this project", "domain: a\nlimits: {}", `2: unknown field "limits"; known are domain,`},
		{"an unknown field", head + "    rate: 10/s", `4: a: unknown field "rate"; known are key, value, rate_limit,`},
		{"no list", "domain: a\ndescriptors: {key: k}", "2: a: descriptors must be a list"},
		{"no fields", "domain: a\ndescriptors: [k]", "2: a: a descriptor must have fields"},
		{"no key", "domain: a\ndescriptors:\n  - value: v", "3: a: key is missing or empty"},
		{"a * in a key", "domain: a\ndescriptors:\n  - key: k*", "3: a: key: a * stands for any text only in a value"},
		{"the same field twice", head + "    key: l", "4: a: key is in line 3 already"},
		{
			"the same descriptor",
			head + "  - key: k",
			"4: a: k: a descriptor with this key and value is in line 3 already",
		},
		{"no unit", limit + "      requests_per_unit: 5", "5: a: unit is missing: second, minute,"},
		{"an unknown unit", limit + "      unit: fortnight", `5: a: unit: "fortnight" is none of second,`},
		{
			"a unit without a limit",
			limit + "      unlimited: true\n      unit: second",
			"6: a: unit: a limit is either unlimited",
		},
		{
			"no number",
			limit + "      unit: second\n      requests_per_unit: 1.5",
			`6: a: requests_per_unit: "1.5" is no whole number`,
		},
		{
			"too many",
			limit + "      unit: second\n      requests_per_unit: 4294967296",
			`6: a: requests_per_unit: "4294967296" is no`,
		},
		{"no truth", head + "    shadow_mode: maybe", "4: a: shadow_mode must be true or false"},
		{"quotas", head + "    quota_mode: true", "4: a: quota_mode is not supported"},
		{
			"shared without a *",
			head + "    value: v\n    share_threshold: true",
			"5: a: share_threshold: the value must have a *",
		},
		{
			"replaces without a name",
			limit + "      unit: second\n      replaces: [{}]",
			"6: a: replaces: the name is empty",
		},
		{
			"replaces itself",
			limit + "      unit: second\n      name: n\n      replaces: [{name: n}]",
			"7: a: replaces: the name is",
		},
		{"replaces without a list", limit + "      unit: second\n      replaces: n", "6: a: replaces must be a list"},
		{
			"a field before those that are merged, which has precedence there",
			limit + "      unit: hour\n      <<: {unit: day}",
			"6: a: << has unit, too, which stands before it: write << first",
		},
		{
			"a limit that is merged with another one, and mixed there",
			"domain: a\ndescriptors:\n" +
				"  - <<: {rate_limit: {unit: hour}}\n    key: k\n    rate_limit: {unlimited: true}",
			"3: a: << has rate_limit, too; envoyproxy/ratelimit would mix the two",
		},
		{"a text that is merged", head + "    <<: text", "4: a: << must have a mapping, or a list of mappings"},
		{
			"a mapping that is merged with itself", "domain: a\ndescriptors:\n  - &a\n    <<: *a\n    key: k",
			"4: a: << must have a mapping, or a list of mappings, and not the mapping itself",
		},
		{
			"a list that contains itself", "domain: a\ndescriptors: &a\n  - key: k\n    descriptors: *a",
			"3: a: the file has more than 10000 descriptors",
		},
		{
			"their field in the format of this project",
			"domains:\n  a:\n    - key: k\n      rate: 1/s\n      shadow_mode: true",
			`5: a: unknown field "shadow_mode"; known are key, value, rate, postpaid, shadow, shared, lease, name, replaces, value-to-metric, ` +
				`detailed-metric, descriptors; a file that begins with "domain:"`,
		},
		{
			"an unknown field in the format of this project",
			"domains:\n  a:\n    - key: k\n      rate: 1/s\n      burst: 1",
			`5: a: unknown field "burst"; known are key, value, rate, postpaid, shadow, shared, lease, name, replaces, value-to-metric, ` +
				`detailed-metric, descriptors; the format is in docs/guide/serve-envoy.md`,
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
	for _, page := range []string{httpForm, envoyForm, theirForm} { // the pages that errors name are there
		_, name, _ := strings.Cut(page, "docs/")
		name, _, _ = strings.Cut(name, " ")
		if _, err := os.Stat("../../docs/" + name); err != nil {
			t.Error(err)
		}
	}
}

// A folder can have files of both formats. A domain or a limit is in one of them.
func TestAFolderOfFiles(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(folder); err == nil ||
		!strings.Contains(err.Error(), "has no file whose name ends with .yaml or .yml") {
		t.Error(err)
	}
	write("2.yaml", "domain: their\n")
	write("1.yml", "domains: {our: []}\nlimits: {b: {key: all, rate: 1/s}}")
	write("3.yaml", "limits: {a: {key: all, rate: 1/s}}")
	write(".hidden.yaml", "nonsense")
	write("README.md", "nonsense")
	write("old.yaml/1.yaml", "nonsense")
	write("..data/4.yaml", "domain: linked")
	if err := os.Symlink("..data/4.yaml", filepath.Join(folder, "4.yaml")); err != nil {
		t.Fatal(err)
	}
	f, err := Load(folder)
	if err != nil || len(f.Limits) != 2 || f.Limits[0].Name != "b" || len(f.Domains) != 3 ||
		f.Domains[0].Name != "our" || f.Domains[1].Name != "their" || f.Domains[2].Name != "linked" {
		t.Errorf("%+v, %v", f, err)
	}
	write("5.yaml", "domain: our")
	write("6.yaml", "limits:\n  b: {key: all, rate: 1/s}\n  c: {key: all, rate: 1}")
	_, err = Load(folder)
	want := folder + "/5.yaml:1: the domain \"our\" is in " + folder + "/1.yml:1 already\n" +
		folder + "/6.yaml:2: the limit \"b\" is in " + folder + "/1.yml:2 already\n" + folder + "/6.yaml:3: c: rate: "
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v\nwant %s", err, want)
	}
}
