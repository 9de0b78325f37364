package guide

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/rratelimiter/rratelimiter/httplimit/rules"
)

// schema_test.go validates files of limits by the JSON Schema of httplimit/rules. The tests are
// here, so that the module httplimit/rules does not need a validator.

// withSchema returns a function that validates a file as an editor does.
func withSchema(t *testing.T) func(text string) error {
	t.Helper()
	const name = "limits.schema.json"
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(rules.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(name, document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return func(text string) error {
		var value any
		if err := yaml.Load([]byte(text), &value); err != nil {
			return err
		}
		return schema.Validate(asJSON(value))
	}
}

// asJSON returns a value with names that are text: in YAML the name of a limit can be a number.
func asJSON(value any) any {
	object := map[string]any{}
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			object[name] = asJSON(field)
		}
		return object
	case map[any]any:
		for name, field := range v {
			object[fmt.Sprint(name)] = asJSON(field)
		}
		return object
	case []any:
		list := make([]any, len(v))
		for i, one := range v {
			list[i] = asJSON(one)
		}
		return list
	}
	return value
}

// The schema is valid, each file of the pages and of the tests passes, and each fails with an
// unknown field.
func TestFilesOfLimitsPassTheSchema(t *testing.T) {
	valid := withSchema(t)
	files := map[string]string{}
	names, err := filepath.Glob(rulesFolder + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	for _, folder := range []string{pages, pages + "/.."} {
		names, err := filepath.Glob(folder + "/*.md")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			for i, block := range blocksOf(t, name, "yaml") {
				files[fmt.Sprintf("%s, block %d", name, i)] = strings.Join(block, "\n")
			}
		}
	}
	if len(files) < 3 {
		t.Fatalf("%d files were found", len(files))
	}
	for name, text := range files {
		if _, err := rules.ParseFile(name, []byte(text), "tenant"); err != nil {
			t.Error(err)
		}
		if err := valid(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if valid(text+"\nlimit: {}\n") == nil ||
			valid(strings.Replace(text, "    rate:", "    burst: 3\n    rate:", 1)) == nil {
			t.Errorf("%s: an unknown field is not noticed", name)
		}
	}
}

// The schema accepts what the parser accepts. Some errors only the parser finds.
func TestSchemaAndParserAgree(t *testing.T) {
	valid := withSchema(t)
	const head, keyed = "limits:\n  a:\n    key: all\n    rate: 10/s\n    ", "limits:\n  a:\n    rate: 10/s\n    key: "
	const entry, quota = "domains: {a: [{key: k, ", "limits:\n  a:\n    key: all\n    quota: "
	const yes, no, onlyParser = "valid", "wrong", "wrong, which only the parser knows"
	for text, want := range map[string]string{
		"": no, "~": no, "- a": no, "limits:\n\ta: 1": no, head + "---\nlimits: {}": no,
		"limits: {}":                            yes,
		"limits:":                               no,
		"limits: [a]":                           no,
		"exempt: 10.0.0.0/8":                    no,
		"limits: {}\nlimits: {}":                no,
		"limits: {}\nlimit: 1":                  no,
		"ignore-case: true\nlimits: {}":         yes,
		"ignore-case: \"false\"\nlimits: {}":    yes,
		"ignore-case: no\nlimits: {}":           no,
		"ignore-case: [true]\nlimits: {}":       no,
		"limits:\n  1: {key: all, rate: 1/s}\n": yes, "limits:\n  a: &a {key: all, rate: 1/s}\n  b: *a": yes,
		"limits:\n  \"{a}\": {key: all, rate: 1/s}": no, "limits:\n  -a: {key: all, rate: 1/s}": no,
		"limits:\n  a: {key: all, rate: 1/s}\n  a: {key: all, rate: 1/s}": no,
		"limits:\n  a: 10/s": no,
		"limits:\n  a:":      no,
		"limits:\n  a: &a {key: all, rate: 1/s}\n  b: {<<: *a, cost: 1}": onlyParser,
		head + "path: /x": no, head + "rate: 1/s": no, "limits:\n  a: {rate: 10/s}": no, "limits:\n  a: {key: all}": no,

		keyed + "address":                   yes,
		keyed + "path":                      yes,
		keyed + "route":                     yes,
		keyed + "tenant":                    yes,
		keyed + "header X-User or  address": yes,
		keyed + "[tenant, path]":            yes,
		keyed + "[all]":                     yes,
		keyed:                               no,
		keyed + "[]":                        no,
		keyed + "[[path]]":                  no,
		keyed + "{a: b}":                    no,
		keyed + "[~]":                       no,
		keyed + "user":                      onlyParser,
		keyed + "header":                    onlyParser,
		keyed + "header Host":               onlyParser,
		keyed + "[address, all]":            onlyParser,

		head + "cost: 10":     yes,
		head + "cost: \"3\"":  yes,
		head + "cost: 0":      no,
		head + "cost: \"00\"": no, head + "cost: 0\n    cost-after: X-Tokens": yes,
		head + "cost: -1":   no,
		head + "cost: many": no,
		head + "cost: 1.5":  no, head + "cost: [1]": no, head + "cost:": no, head + "cost: 11": onlyParser,

		head + "cost-after: X-Tokens-Used":                    yes,
		head + "cost-after: X Tokens":                         no,
		head + "cost-after: [X-A]":                            no,
		head + "cost-after:":                                  no,
		head + "cost-after: X-A\n    penalty: 1s":             yes,
		quota + "5/day\n    cost-after: X-A":                  yes,
		quota + "5/day\n    cost-after: X-A\n    penalty: 1s": onlyParser,

		head + "paths: /":                                 yes,
		head + "paths: [/a, /b/]":                         yes,
		head + "paths: [/.well-known/, /a..b, /..., /a.]": yes,
		head + "paths: a":                                 no,
		head + "paths: /a/*":                              no,
		head + "paths: \"/a{id}\"":                        no,
		head + "paths: /a;b":                              no,
		head + "paths: /caf%C3%A9":                        no,
		head + "paths: /café":                             yes,
		head + "paths: '/a\\b'":                           no,
		head + "paths: /a?b":                              no,
		head + "paths: '/a#b'":                            no,
		head + "paths: //":                                no,
		head + "paths: /a//b":                             no,
		head + "paths: /a//":                              no,
		head + "paths: /a/./b":                            no,
		head + "paths: /a/..":                             no,
		head + "paths: /../a":                             no,
		head + "paths: []":                                no,
		head + "paths:":                                   no, head + "paths: [[/a]]": no,

		head + "methods: GET":           yes,
		head + "methods: [GET, DELETE]": yes,
		head + "methods: get":           no,
		head + "methods: []":            no,
		head + "methods: [GET, FETCH]":  no,

		quota + "5/day": yes,
		quota + "20000/month\n    from: 15\n    time-zone: Europe/Berlin": yes,
		quota + "5/week\n    from: friday":                                yes,
		quota + "5/hour":                                                  no,
		quota + "0/day":                                                   no,
		quota + "5":                                                       no,
		quota + "5/day\n    rate: 1/s":                                    no,
		quota + "5/day\n    lease: 1s":                                    no,
		quota + "5/month\n    from: 32":                                   no,
		quota + "5/month\n    from: monday":                               onlyParser,
		quota + "5/day\n    from: 3":                                      onlyParser,
		quota + "5/year\n    from: april":                                 yes,
		quota + "5/year\n    from: 3":                                     onlyParser,
		"limits:\n  a:\n    key: all\n    rate: 5/month\n    from: 3\n    time-zone: UTC":                  yes,
		"limits:\n  a:\n    key: all\n    rate: 5/year\n    lease: 1s":                                     no,
		"limits:\n  a:\n    key: all\n    rate: 5 / month\n    plans: {header: X-Plan, rates: {pro: 5/m}}": no,
		"limits:\n  a:\n    key: all\n    rate: 0/month":                                                   no,
		head + "plans: {header: X-Plan, rates: {pro: 5/month}}":                                            no,
		entry + "rate: 5/month":                             yes,
		entry + "rate: 5/year, lease: 1s":                   no,
		entry + "rate: 1/week, lease: 1s":                   yes,
		quota + "5/day\n    time-zone: Berlin":              onlyParser,
		quota + "5/day\n    cost: 6":                        onlyParser,
		head + "from: 3":                                    no,
		head + "time-zone: UTC":                             no,
		head + "hosts: shop.example.com":                    yes,
		head + "hosts: ['*.example.com', Shop.example.com]": yes,
		head + "hosts: 'a.example:80'":                      no,
		head + "hosts: a.*.b":                               no,
		head + "hosts: []":                                  no,
		head + "shadow: true":                               yes,
		head + "shadow: 1":                                  no,
		head + "lease: 100ms":                               yes,
		head + "lease: 101ms":                               onlyParser,
		head + "lease: 5":                                   no,
		head + "plans: {header: X-Plan, rates: {pro: 5/m, own: unlimited}}": yes,
		head + "plans: {rates: {pro: 5/m}}":                                 no,
		head + "plans: {header: X-Plan}":                                    no,
		head + "plans: {header: 'X Plan', rates: {pro: 5/m}}":               no,
		head + "plans: {header: X-Plan, rates: {}}":                         no,
		head + "plans: {header: X-Plan, rates: {'': 5/m}}":                  no,
		head + "plans: {header: X-Plan, rates: {pro: 5}}":                   no,
		head + "plans: {header: X-Plan, rates: {pro: 5/m}, key: path}":      no,
		head + "cost: 6\n    plans: {header: X-Plan, rates: {pro: 5/m}}":    onlyParser,
		"skip: [/healthz, /static/]\nlimits: {}":                            yes,
		"skip: healthz\nlimits: {}":                                         no,
		"skip: []\nlimits: {}":                                              no,

		head + "exempt: 192.0.2.7": yes, head + "exempt: [10.0.0.0/8, 2001:db8::/32]": yes, head + "exempt: '::1'": yes,
		"exempt: 192.0.2.7\nlimits: {}":          yes,
		"exempt: intranet\nlimits: {}":           no,
		head + "exempt: fe80::1%eth0":            no,
		head + "exempt: []":                      no,
		head + "exempt: 10.0.0.1/8":              onlyParser,
		head + "exempt: \"::ffff:10.0.0.0/104\"": onlyParser,
		head + "exempt: 10.0.0.0/99":             onlyParser,

		"domains: {}":             yes,
		"domains: {}\nlimits: {}": yes,
		"domains:":                no,
		"domains: [a]":            no,
		"domains: {\"{a}\": [{key: k, rate: 1/s}]}":                      yes,
		"domains: {'': []}":                                              no,
		"domains: {a: []}":                                               yes,
		"domains: {a: {key: k, rate: 1/s}}":                              no,
		"domains: {a: [k]}":                                              no,
		entry + "rate: 1/s":                                              yes,
		entry + "rate: 1":                                                no,
		entry + "rate: unlimited":                                        yes,
		entry + "unit: second":                                           no,
		entry + "value: v":                                               no,
		"domains: {a: [{rate: 1/s}]}":                                    no,
		entry + "rate: 1/s, value: 12":                                   yes,
		entry + "rate: 1/s, value: true":                                 yes,
		entry + "rate: 1/s, value: ''":                                   no,
		entry + "rate: 1/s, value: [v]":                                  no,
		entry + "descriptors: [{key: l, rate: 1/s}]":                     yes,
		entry + "descriptors: []":                                        no,
		entry + "descriptors: [{key: l, burst: 1}]":                      no,
		entry + "descriptors: [{key: l, rate: 1/s}], shadow: true":       no,
		entry + "rate: 1/s, shadow: true":                                yes,
		entry + "rate: 1/s, shadow: 1":                                   no,
		entry + "rate: 1/s, shared: true":                                no,
		entry + "rate: 1/s, value: v, shared: true":                      onlyParser,
		entry + "rate: 1/s, value: v*, shared: true":                     yes,
		entry + "rate: 1/s, lease: 100ms":                                yes,
		entry + "rate: 1/s, lease: 101ms":                                onlyParser,
		entry + "rate: 1/s, lease: 0s":                                   onlyParser,
		entry + "rate: 1/s, lease: long":                                 no,
		entry + "rate: 1/s, lease: 5":                                    no,
		entry + "lease: 5ms, descriptors: [{key: l, rate: 1/s}]":         no,
		entry + "rate: 1/s, name: n, replaces: m":                        onlyParser,
		entry + "rate: 1/s, name: n}, {key: l, rate: 1/s, replaces: [n]": yes,
		entry + "rate: 1/s, name: 5":                                     yes,
		entry + "rate: 1/s, name: a b":                                   yes,
		entry + "rate: 1/s, name: ''":                                    no,
		entry + "rate: 1/s, postpaid: true":                              yes,
		entry + "rate: unlimited, postpaid: true":                        yes,
		entry + "rate: 5/month, postpaid: true, shadow: true":            yes,
		entry + "postpaid: true, descriptors: [{key: l, rate: 1/s}]":     no, entry + "rate: 1/s, postpaid: 1": no,
		entry + "rate: 1/s, postpaid: true, lease: 100ms": no, entry + "rate: 1/s, postpaid: false, lease: 100ms": yes,
		entry + "rate: 1/s, detailed-metric: true, value-to-metric: true":   yes,
		entry + "detailed-metric: true, descriptors: [{key: l, rate: 1/s}]": no,
		entry + "rate: 1/s}, {key: k, rate: 1/s":                            onlyParser,
	} {
		if strings.HasPrefix(text, entry) {
			text += "}]}"
		}
		_, fault := rules.ParseFile("limits.yaml", []byte(text), "tenant")
		err := valid(text)
		if (fault == nil) != (want == yes) || (err == nil) != (want != no) {
			t.Errorf("%q is %s; the parser says %v, the schema %v", text, want, fault, err)
		}
	}
	for _, rate := range []string{
		"10/s", "0/s", "600/m", "5/250ms", "1000/hour", "1/1h30m", "1/1.5s", "10/min keep-alive 2h", "'  7 / d '",
		"+1/.5m", "1/50d", "1/s/s",
		"10", "many/s", "-1/s", "1/", "/s", "1/week", "1/2w", "1/7d", "1/1.5d", "5/year", "+5 / month", "x/month",
		"10/s per client", "10/s keep-alive", "10/s keep-alive week", "[10/s]", "", "10/s per client keep-alive 1h",
	} {
		text := "limits:\n  a:\n    key: all\n    rate: " + rate
		_, fault := rules.Parse("limits.yaml", []byte(text))
		if err := valid(text); (fault == nil) != (err == nil) {
			t.Errorf("rate: %s: the parser says %v, the schema %v", rate, fault, err)
		}
	}
}

// Editors show what a field means.
func TestFieldsOfTheSchemaAreDescribed(t *testing.T) {
	type object struct {
		Properties map[string]struct {
			Description string `json:"description"`
		} `json:"properties"`
	}
	var file struct {
		object
		Definitions struct {
			Limit      object `json:"limit"`
			Descriptor object `json:"descriptor"`
		} `json:"definitions"`
	}
	if err := json.Unmarshal([]byte(rules.Schema()), &file); err != nil {
		t.Fatal(err)
	}
	for _, o := range []object{file.object, file.Definitions.Limit, file.Definitions.Descriptor} {
		for name, field := range o.Properties {
			if field.Description == "" {
				t.Errorf("%s has no description", name)
			}
		}
	}
}
