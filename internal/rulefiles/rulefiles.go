// Package rulefiles draws files of rules, for tests of the package httplimit/rules and of
// "rrl check-rules": fields with ordinary values, with values at the edges of what is accepted, and
// with values beyond.
package rulefiles

import (
	"maps"
	"slices"
	"strings"
)

// File, Limit and Descriptor have the values of each field of a file, of a limit and of a
// descriptor of a domain, the fields limits, domains and descriptors apart. 4294967295 is the most
// permits of a rate, 9007199254740991 those of a quota, 2562047h the longest Duration.
var (
	File = map[string][]string{
		"exempt":      {"10.0.0.0/8", "192.0.2.7", "[2001:db8::/32, 192.0.2.0/24]", "here"},
		"skip":        {"/healthz", "[/static/, /]", "/", "static"},
		"ignore-case": {"true", "false", "maybe"},
	}
	Limit = map[string][]string{
		"key": {
			"address", "all", "path", "route", "header X-A or address", "[address, path]", "header X-None", "no key",
		},
		"rate": rates,
		"plans": {
			"{header: X-Plan, rates: {pro: 5/s}}", "{header: X-Plan, rates: {pro: unlimited}}",
			"{header: X-Plan, rates: {pro: 0/s}}", "{header: X-Plan, rates: {pro: 9007199254740992/s}}",
		},
		"quota": {
			"1/day", "0/day", "2147483647/day", "2147483648/week", "5000000000/month", "9007199254740991/month",
			"9007199254740992/month", "9223372036854775807/day", "5/year", "-1/day", "1.5/day", "1/hour",
		},
		"from":      {"monday", "1", "31", "april", "sunday", "32", "0", "2.5"},
		"time-zone": {"Europe/Berlin", "UTC", "Local", "Nowhere"},
		"cost": {
			"1", "2", "5", "6", "0", "-1", "4294967295", "2147483648", "9007199254740992", "9223372036854775807",
			"many",
		},
		"cost-after": {"X-Cost", "'X Cost'"},
		"paths":      {"/", "/a/", "[/b, /a]", "a"},
		"methods":    {"GET", "[GET, POST]", "POST", "get"},
		"hosts":      {"example.com", "'*.example.com'", "example.org", "'*'"},
		"exempt":     {"10.0.0.0/8", "192.0.2.7", "::ffff:10.0.0.0/104"},
		"lease":      {"1ms", "25ms", "100ms", "101ms", "256204h42m", "2562047h", "1us", "0.5ms", "0s", "-1s"},
		"penalty":    {"1ms", "15m", "1281024h", "2562047h", "2562048h", "0.5ms", "0s"},
		"shadow":     {"true", "false"},
	}
	Descriptor = map[string][]string{
		"key":      {"k", "remote_address", "''"},
		"value":    {"a", "'a*'", "'*'", "''"},
		"rate":     append([]string{"unlimited"}, rates...),
		"postpaid": {"true", "false"},
		"shadow":   {"true", "false"},
		"shared":   {"true", "false"},
		"lease":    {"1ms", "100ms", "101ms", "0s"},
		"name":     {"one", "two", "'no name'"},
		"replaces": {"one", "[one, two]", "none"},

		"value-to-metric": {"true", "maybe"},
		"detailed-metric": {"false", "true", "maybe"},
	}
)

var rates = []string{
	"5/s", "1/s", "0/s", "10/d", "1/week", "5/7d", "2/month", "1/year", "4294967295/s", "1/1ms", "1/2ms", "1/9ms",
	"1/10ms", "1/1281024h", "1/2562047h", "1/s keep-alive 1s", "1/s keep-alive 2562047h", "0/month", "4294967296/s",
	"5000000000/1h", "9007199254740991/s", "-1/s", "1.5/s", "1e3/s", "99999999999999999999/s", "1/1us", "1/1.5ms",
	"1/0s", "1/2562048h", "1/s keep-alive 1ms", "1/s keep-alive 999ms", "1/s per client",
}

// Draw returns a file. pick chooses a number from 0 to below n.
func Draw(pick func(what string, n int) int) string {
	var b strings.Builder
	for _, field := range some(pick, File, 0) {
		b.WriteString(field + "\n")
	}
	sections := pick("sections", 6)
	if sections != 5 {
		b.WriteString("limits:\n")
		for _, name := range []string{"a", "b", "c"}[:1+pick("limits", 3)] {
			fields := some(pick, Limit, 3, "key", []string{"rate", "quota"}[pick("permits", 4)/3])
			b.WriteString("  " + name + ": {" + strings.Join(fields, ", ") + "}\n")
		}
	}
	if sections >= 4 {
		b.WriteString(Domains(pick))
	}
	return b.String()
}

// Domains returns the section domains of a file.
func Domains(pick func(what string, n int) int) string {
	text := "domains:\n"
	for _, name := range []string{"shop", "bank"}[:1+pick("domains", 2)] {
		text += "  " + name + ": " + descriptors(pick, 2) + "\n"
	}
	return text
}

func descriptors(pick func(string, int) int, depth int) string {
	var all []string
	for range 1 + pick("descriptors", 2) {
		needed := []string{"key", "rate"}[:1+min(1, pick("a rate", 4))]
		fields := some(pick, Descriptor, 3, needed...)
		if depth > 0 && pick("following", 3) == 2 {
			fields = append(fields, "descriptors: "+descriptors(pick, depth-1))
		}
		all = append(all, "{"+strings.Join(fields, ", ")+"}")
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// some returns fields with values: those that are needed, and up to n more.
func some(pick func(string, int) int, values map[string][]string, n int, needed ...string) (fields []string) {
	names := slices.Sorted(maps.Keys(values))
	if n == 0 {
		n = len(names)
	}
	chosen := slices.Clone(needed)
	for range pick("fields", n+1) {
		if name := names[pick("field", len(names))]; !slices.Contains(chosen, name) {
			chosen = append(chosen, name)
		}
	}
	for _, name := range chosen {
		all := values[name]
		if pick("any value", 6) != 5 { // ordinary values come first
			all = all[:(len(all)+1)/2]
		}
		fields = append(fields, name+": "+all[pick(name, len(all))])
	}
	return fields
}
