package rules

import (
	"errors"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter"
)

// limitsFile is the file of the guide.
const limitsFile = "testdata/limits.yaml"

func TestAFileIsUnderstood(t *testing.T) {
	data, err := os.ReadFile(limitsFile)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse("limits.yaml", data, "tenant")
	if err != nil {
		t.Fatal(err)
	}
	own := netip.MustParsePrefix("10.0.0.0/8")
	want := []Limit{
		{
			Name: "per-second", Key: "address", Rate: rratelimiter.PerSecond(10), Cost: 1, Exempt: []netip.Prefix{own},
			key: [][]string{{"address"}},
		},
		{
			Name: "search", Key: "header X-API-Key or address", Rate: rratelimiter.PerMinute(600), Cost: 5,
			Paths: []string{"/search", "/export/"},
			Methods: []string{
				"GET", "POST",
			},
			Exempt: []netip.Prefix{own, netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("2001:db8::/32")},
			key:    [][]string{{"header X-API-Key", "address"}},
		},
		{
			Name: "uploads", Key: "tenant, path", Rate: rratelimiter.PerHour(20), Cost: 1, Paths: []string{"/files/"},
			Methods: []string{"PUT"},
			Exempt:  []netip.Prefix{own}, key: [][]string{{"tenant"}, {"path"}},
		},
		{
			Name: "exports", Key: "all", Rate: rratelimiter.PerMinute(100), Cost: 1, Paths: []string{"/export/"},
			Exempt: []netip.Prefix{own},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

func TestFormsOfAFile(t *testing.T) {
	for text, want := range map[string]int{
		"limits: {}":                         0,
		"exempt: 10.0.0.0/8\nlimits: {}":     0,
		"ignore-case: true\nlimits: {}":      0,
		"limits: {a: {key: all, rate: 1/s}}": 1,
		"---\nlimits:\n  1: {key: all, rate: 1/s}\n  2: {key: all, rate: 1/s}\n":                                     2,
		"limits:\n  a: &a {key: all, rate: 1/s, paths: &p [/x]}\n  b: *a\n  c: {key: all, rate: 5/250ms, paths: *p}": 3,
		"limits:\n  a:\n    key:   header   X   or  route\n    rate: 1/h keep-alive 2h\n    cost: 1":                 1,
	} {
		limits, err := Parse("f", []byte(text))
		if err != nil || len(limits) != want {
			t.Errorf("%q: %+v, %v", text, limits, err)
		}
	}
}

func TestEachFaultHasItsLine(t *testing.T) {
	const head = "limits:\n  a:\n    key: all\n    rate: 10/s\n"
	for _, test := range []struct{ name, text, want string }{
		{"nothing", "", "1: the file is empty"},
		{"comments", "# limits\n", "1: the file is empty"},
		{"null", "~", "1: the file is empty"},
		{"no YAML", "limits:\n\ta: 1", "2: no valid YAML: found character that cannot start any token"},
		{
			"no YAML, later", "limits:\n  a: [1\n  b: 2\n",
			"3: no valid YAML: did not find expected ',' or ']' while parsing a flow sequence that begins in line 2",
		},
		{
			"wrong indentation", head + "   cost: 5\n",
			"5: no valid YAML: did not find expected key while parsing a block mapping that begins in line 2",
		},
		{
			"an open quote", head + "    paths: '/a\n    cost: 5\n",
			"7: no valid YAML: found unexpected end of stream while scanning a quoted scalar that begins in line 5",
		},
		{"an unknown anchor", head + "    paths: *ours\n", "5: no valid YAML: unknown anchor 'ours' referenced"},
		{"a control character", head + "    paths: /a\x00\n", "5: no valid YAML: control characters are not allowed"},
		{"no UTF-8", head + "    paths: /caf\xe9\n", "5: no valid YAML: incomplete UTF-8"},
		{"two documents", head + "---\nlimits: {}\n", "5: a second document"},
		{"a list", "- a\n- b", "1: the file must have fields"},
		{"no limits", "# ours\nexempt: [10.0.0.0/8]", "2: the file has no field \"limits\""},
		{"null limits", "limits:\n", "1: the field \"limits\" must have the name"},
		{"a list of limits", "limits:\n  - name: a", "2: the field \"limits\" must have the name"},
		{
			"unknown field of the file", head + "limit: 1",
			`5: unknown field "limit"; known are exempt, skip, ignore-case, limits`,
		},
		{"a case that is neither", "ignore-case: perhaps\n" + head, "1: ignore-case must be true or false"},
		{"a case that is a list", "ignore-case: [true]\n" + head, "1: ignore-case must be true or false"},
		{"the same field of the file", head + "limits: {}", "5: limits is in line 1 already"},
		{
			"unknown field", head + "    path: /x",
			`5: a: unknown field "path"; known are key, rate, plans, quota, from, time-zone, cost, cost-after, paths, methods, hosts, exempt, lease, penalty, shadow`,
		},
		{"the same field", head + "    rate: 20/s", "5: a: rate is in line 4 already"},
		{
			"the same name", head + "  b: {key: all, rate: 1/s}\n  a: {key: all, rate: 1/s}",
			`6: the limit "a" is in limits.yaml:2 already`,
		},
		{"a name with a brace", "limits:\n  \"{a}\\e\": {key: all, rate: 1/s}", `2: the name "{a}\x1b"`},
		{"no fields", "limits:\n  a: 10/s", "2: a: a limit must have fields"},
		{"no key", "limits:\n  a:\n    rate: 10/s", "2: a: it has no field \"key\""},
		{"no rate", "limits:\n  a:\n    key: all", "2: a: it has no rate"},
		{
			"a wrong rate",
			"limits:\n  a:\n    key: all\n    rate: 10",
			`4: a: rate: "10" is not of the form permits/interval`,
		},
		{"no permits", "limits:\n  a:\n    key: all\n    rate: -1/s", "4: a: rate: "},
		{
			"a rate per client", "limits:\n  a:\n    key: all\n    rate: 10/s per client",
			"4: a: rate: \"10/s per client\": \"per client\" would mean per process",
		},
		{"a rate that is a list", "limits:\n  a:\n    key: all\n    rate: [10/s]", "4: a: rate must be a single value"},
		{"a cost that is none", head + "    cost: many", `5: a: cost: "many" is no whole number`},
		{"a cost of 0", head + "    cost: 0", "5: a: cost: "},
		{"a cost above the rate", head + "    cost: 11", "5: a: cost: 11 is more than the rate 10/s ever grants"},
		{"no cost", head + "    cost:", "5: a: cost must be a single value"},
		{
			"a path without a slash", head + "    paths:\n      - /a\n      - b",
			`7: a: the path "b" does not begin with a slash`,
		},
		{"a pattern", head + "    paths: /a/*", `5: a: the path "/a/*" must not contain *`},
		{
			"a path with a parameter", head + "    paths: /a;b",
			`5: a: the path "/a;b" must not contain ; % or \: write the path that servers read`,
		},
		{"an escaped path", head + "    paths: /caf%C3%A9", `5: a: the path "/caf%C3%A9" must not contain ;`},
		{"a long path", head + "    paths: /a//b/../c", `5: a: write the path "/a//b/../c" as "/a/c"`},
		{"only slashes", head + "    paths: //", `5: a: write the path "//" as "/"`},
		{"no paths", head + "    paths: []", "5: a: paths is empty: write a value, or leave the field out"},
		{"null paths", head + "    paths:", "5: a: paths must be a text, or a list"},
		{"paths in paths", head + "    paths:\n      - [/a]", "6: a: paths must be a text, or a list"},
		{
			"a method in lower case",
			head + "    methods: [GET,\n      post]",
			`6: a: the method "post" is none of GET, HEAD,`,
		},
		{
			"a quota of an hour", "limits:\n  a:\n    key: all\n    quota: 5/hour",
			`4: a: quota: "5/hour" is not of the form permits/day`,
		},
		{
			"no quota", "limits:\n  a:\n    key: all\n    quota: 0/day",
			"4: a: quota: 0 permits, not 1 to 9007199254740991",
		},
		{
			"a quota that is too large", "limits:\n  a:\n    key: all\n    quota: 9007199254740992/month",
			"4: a: quota: 9007199254740992 permits, not 1 to 9007199254740991",
		},
		{"a quota and a rate", head + "    quota: 5/day", "4: a: rate: a limit has either a rate or a quota"},
		{
			"a quota with a lease", "limits:\n  a:\n    key: all\n    quota: 5/day\n    lease: 1s",
			"5: a: lease: a limit has either a rate or a quota, and only one with a rate has lease",
		},
		{
			"a month from a weekday", "limits:\n  a:\n    key: all\n    quota: 5/month\n    from: monday",
			`5: a: from: "monday" is neither`,
		},
		{
			"a day from a day",
			"limits:\n  a:\n    key: all\n    quota: 5/day\n    from: 3",
			`5: a: from: "3" is neither`,
		},
		{
			"a month from the 32nd", "limits:\n  a:\n    key: all\n    quota: 5/month\n    from: 32",
			`5: a: from: "32" is neither`,
		},
		{
			"no time zone", "limits:\n  a:\n    key: all\n    quota: 5/day\n    time-zone: Berlin",
			`5: a: time-zone: "Berlin" is none`,
		},
		{
			"a cost above the quota", "limits:\n  a:\n    key: all\n    quota: 5/day\n    cost: 6",
			"5: a: cost: 6 is more than the quota 5/day",
		},
		{
			"no month",
			"limits:\n  a:\n    key: all\n    rate: 5.5/month",
			`4: a: rate: "5.5/month" is not of the form permits/day`,
		},
		{
			"two months",
			"limits:\n  a:\n    key: all\n    rate: 5/2 Months",
			"nor a duration such as 5m or 7d; a month or a year of the calendar is 5/month or 5/year",
		},
		{
			"a month with a quota",
			"limits:\n  a:\n    key: all\n    rate: 5/month\n    quota: 5/day",
			"4: a: rate: a limit has either a rate or a quota",
		},
		{
			"a month with a lease", "limits:\n  a:\n    key: all\n    rate: 5/month\n    lease: 1s",
			"5: a: lease: a limit has either a rate or a quota, and only one with a rate has lease",
		},
		{
			"a month with plans",
			"limits:\n  a:\n    key: all\n    rate: 5/month\n    plans: {header: X-Plan, rates: {pro: 1/s}}",
			"5: a: plans: a limit has either a rate or a quota, and only one with a rate has plans",
		},
		{
			"a plan of a month",
			head + "    plans: {header: X-Plan, rates: {pro: 1/month}}",
			`5: a: rate: "1/month": a month or a year has no fixed length`,
		},
		{
			"a year from a day", "limits:\n  a:\n    key: all\n    rate: 5/year\n    from: 3",
			`5: a: from: "3" is neither`,
		},
		{"a rate with a time zone", head + "    time-zone: UTC", "5: a: time-zone: only a limit with a quota has it"},
		{
			"a host with a port", head + "    hosts: [a.example, 'b.example:80']",
			`5: a: hosts: "b.example:80" is neither a name`,
		},
		{"a host with a star inside", head + "    hosts: a.*.example", `5: a: hosts: "a.*.example" is neither a name`},
		{
			"a lease that is too long", head + "    lease: 101ms",
			"5: a: lease: with the rate 10/s: the lease 101ms is more than a tenth of the interval 1s",
		},
		{
			"a lease that is too long for a plan",
			head + "    lease: 50ms\n    plans: {header: X-Plan, rates: {pro: 5/250ms}}",
			"5: a: lease: with the rate 5/250ms: the lease 50ms is more than a tenth of the interval 250ms",
		},
		{
			"a cost above the rate of a plan",
			head + "    cost: 6\n    plans: {header: X-Plan, rates: {pro: 5/m, top: unlimited}}",
			"5: a: cost: 6 is more than the rate 5/m ever grants",
		},
		{"plans without a header", head + "    plans: {rates: {pro: 5/m}}", `5: a: plans: it has no field "header"`},
		{
			"plans of no header", head + "    plans: {header: 'X Plan', rates: {pro: 5/m}}",
			`5: a: plans: "X Plan" is no name of a header`,
		},
		{
			"plans of the header Host", head + "    plans: {header: host, rates: {pro: 5/m}}",
			"5: a: plans: no request has the header Host",
		},
		{
			"plans without rates", head + "    plans: {header: X-Plan, rates: {}}",
			`5: a: plans: the field "rates" must have a rate`,
		},
		{
			"a plan twice", head + "    plans:\n      header: X-Plan\n      rates:\n        pro: 5/m\n        pro: 6/m",
			`9: a: plans: the value "pro" is empty, or has two rates`,
		},
		{
			"a plan with a wrong rate", head + "    plans:\n      header: X-Plan\n      rates:\n        pro: much",
			`8: a: rate: "much"`,
		},
		{"plans that are no mapping", head + "    plans: pro", "5: a: plans must have fields"},
		{
			"a penalty without a unit", head + "    penalty: 10",
			`5: a: penalty: "10" is not a positive number of whole milliseconds`,
		},
		{"a shadow that is neither", head + "    shadow: perhaps", "5: a: shadow must be true or false"},
		{
			"a path to skip without a slash",
			"skip: healthz\n" + head,
			`1: the path "healthz" does not begin with a slash`,
		},
		{
			"no network", head + "    exempt: [10.0.0.0/8,\n      intranet]",
			`6: a: exempt: "intranet" is neither an address nor a network`,
		},
		{"a network that is longer", "exempt: 10.0.0.1/8\n" + head, "1: exempt: write 10.0.0.1/8 as 10.0.0.0/8"},
		{
			"a network in IPv6", head + "    exempt: \"::ffff:10.0.0.0/104\"",
			`5: a: exempt: write the IPv4 addresses of "::ffff:10.0.0.0/104" as an IPv4 network`,
		},
		{
			"an address behind a NAT64",
			head + "    exempt: \"64:ff9b::192.0.2.1\"",
			"5: a: exempt: write the IPv4 addresses",
		},
		{"a network behind a NAT64", head + "    exempt: \"64:ff9b::/64\"", "5: a: exempt: write the IPv4 addresses"},
		{"a zone", head + "    exempt: fe80::1%eth0", "5: a: exempt: "},
		{
			"an unknown key", "limits:\n  a:\n    rate: 10/s\n    key: user",
			`4: a: key: "user" is none of address, path, route, header NAME, all, tenant`,
		},
		{
			"an unknown key of several",
			"limits:\n  a:\n    rate: 10/s\n    key:\n      - address\n      - header X-User or user",
			`6: a: key: "user" is none of`,
		},
		{
			"all and another",
			"limits:\n  a:\n    rate: 10/s\n    key: [address, all]",
			"4: a: key: all cannot be combined",
		},
		{
			"all or another", "limits:\n  a:\n    rate: 10/s\n    key: address or all",
			"4: a: key: all cannot be combined with other keys",
		},
		{"no header", "limits:\n  a:\n    rate: 10/s\n    key: header", `4: a: key: "header" is none of`},
		{
			"no name of a header", "limits:\n  a:\n    rate: 10/s\n    key: \"header X-User: ann\"",
			`4: a: key: "X-User: ann" is no name of a header`,
		},
		{"Host", "limits:\n  a:\n    rate: 10/s\n    key: header host", "4: a: key: no request has the header Host"},
	} {
		limits, err := Parse("limits.yaml", []byte(test.text), "tenant")
		var faults Faults
		if !errors.As(err, &faults) || len(faults) != 1 || limits != nil {
			t.Errorf("%s: %v, %v", test.name, limits, err)
		} else if got := err.Error(); !strings.Contains(got, "limits.yaml:") || !strings.Contains(got, test.want) ||
			strings.Contains(got, "\x1b") {
			t.Errorf("%s: %s; want %s", test.name, got, test.want)
		}
	}
}

func TestAllFaultsAreFound(t *testing.T) {
	_, err := Parse("f", []byte("limits:\n  b: {rate: 1, cost: x}\n  a: 5\nexempt: x\n"))
	want := `f:2: b: it has no field "key"; if all requests share one rate, write "key: all"
f:2: b: rate: "1" is not of the form permits/interval, such as 100/s
f:2: b: cost: "x" is no whole number from 1 on, or 0 with cost-after
` + "f:3: a: a limit must have fields, one a line: key, rate, plans, quota, from, time-zone, cost, " +
		"cost-after, paths, methods, hosts, exempt, lease, penalty, shadow\n" + `f:4: exempt: "x" is neither an address nor a network such as 10.0.0.0/8`
	if err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

// A file never stops the program.
func FuzzParse(f *testing.F) {
	data, err := os.ReadFile(limitsFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(data))
	f.Add("limits:\n  a: &a {key: [all], rate: 1/s, paths: *a}")
	f.Fuzz(func(t *testing.T, text string) {
		limits, err := Parse("f", []byte(text))
		var faults Faults
		if err != nil && (!errors.As(err, &faults) || len(faults) == 0) {
			t.Errorf("%v", err)
		}
		for _, fault := range faults {
			if fault.Line < 1 || fault.Text == "" {
				t.Errorf("%+v", fault)
			}
		}
		for _, l := range limits {
			most := max(l.Rate.Permits, l.Quota.Permits)
			if most < 1 && l.Rate.Interval == 0 || l.Cost < 1 || most > 0 && l.Cost > most || l.Key == "" {
				t.Errorf("%+v", l)
			}
		}
	})
}
