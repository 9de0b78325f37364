package main

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/internal/proof"
	"github.com/rratelimiter/rratelimiter/internal/rulefiles"
)

// rulesFile is the file of the guide.
const rulesFile = "../../httplimit/rules/testdata/limits.yaml"

func TestCheckRulesPrintsTheLimits(t *testing.T) {
	want := `limit        rate  cost  key                          methods   paths             exempt
per-second   10/s     1  address                      all       all               10.0.0.0/8
search      600/m     5  header X-API-Key or address  GET POST  /search /export/  10.0.0.0/8 192.0.2.7 2001:db8::/32
uploads      20/h     1  tenant, path                 PUT       /files/           10.0.0.0/8
exports     100/m     1  all                          all       /export/          10.0.0.0/8
`
	code, out, errs := rrl(t.Context(), "check-rules", "--own-key", "tenant", rulesFile)
	if code != 0 || errs != "" || out != want {
		t.Errorf("%d, %s\n%s", code, errs, out)
	}
}

func TestCheckRulesPrintsTheOptionsOfLimits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limits.yaml")
	text := `skip: [/healthz, /static/]
limits:
  a:
    key: all
    rate: 10/s
    plans: {header: X-Plan, rates: {pro: 50/s, internal: unlimited}}
    hosts: [A.example.com, "*.example.org"]
    lease: 100ms
    penalty: 10m
    shadow: true
  b: {key: all, rate: 1/s}
  c: {key: all, quota: 9007199254740991/month, from: 15, time-zone: Europe/Berlin}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := rrl(t.Context(), "check-rules", file)
	want := []string{
		"X-Plan:internal=unlimited X-Plan:pro=50/s hosts=a.example.com,*.example.org skip=/healthz,/static/ lease=100ms penalty=10m0s shadow",
		"skip=/healthz,/static/",
	}
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if code != 0 || errs != "" || len(lines) != 4 || !strings.HasSuffix(lines[1], want[0]) ||
		!strings.HasSuffix(lines[2], want[1]) ||
		!strings.Contains(lines[3], " 9007199254740991/month ") ||
		!strings.HasSuffix(lines[3], "from=15 time-zone=Europe/Berlin skip=/healthz,/static/") {
		t.Errorf("%d, %s\n%s", code, errs, out)
	}
}

// The guide has the file of the tests.
func TestCheckRulesAcceptsTheDomainsOfTheGuide(t *testing.T) {
	const envoy = "../../httplimit/rules/testdata/envoy.yaml"
	if code, _, errs := rrl(t.Context(), "check-rules", envoy); code != 0 || errs != "" {
		t.Errorf("%d, %s", code, errs)
	}
	page, err := os.ReadFile("../../docs/guide/serve-envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(envoy)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```yaml\n"+string(file)+"```\n") {
		t.Error("the guide has another file")
	}
}

func TestCheckRulesPrintsTheDomains(t *testing.T) {
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	text := `domains:
  shop:
    - {key: address, rate: 10/s, shadow: true, lease: 100ms}
    - {key: path, value: /a/*, rate: 1/m, shared: true, name: one, replaces: [two]}
    - key: user
      descriptors:
        - {key: method, rate: 5/s, name: two, postpaid: true}
        - {key: method, value: "GET\e", rate: unlimited}
    - {key: host, value: "*.org", shared: true, descriptors: [{key: method, rate: 6/s}]}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want := `domain  descriptor                   rate  options
shop    address                      10/s  shadow lease=100ms
shop    path=/a/*                     1/m  shared name=one replaces=two
shop    user, method                  5/s  postpaid name=two
shop    user, method=GET\u001b  unlimited  none
shop    host=*.org                      -  shared
shop    host=*.org, method            6/s  none
`
	if code, out, errs := rrl(t.Context(), "check-rules", file); code != 0 || errs != "" || out != want {
		t.Errorf("%d, %s\n%s", code, errs, out)
	}
}

const theirFolder = "../../httplimit/rules/testdata/envoyproxy"

// Of files of envoyproxy/ratelimit it prints the rules, and what becomes of each field.
func TestCheckRulesReadsFilesOfEnvoyproxy(t *testing.T) {
	code, out, errs := rrl(t.Context(), "check-rules", theirFolder)
	if code != 0 || errs != "" {
		t.Fatalf("%d, %s", code, errs)
	}
	for _, line := range []string{
		`mail +message_type=offer, to_number +5/week +none`,
		`mail +sender +20000/month +detailed-metric`,
		`edge/shop +path=/export/\* +100/m +shadow shared value-to-metric`,
		`edge/shop +user, method=GET +1000000/year +replaces=any method`,
		`edge/shop +health +unlimited +none`,
		`unit: second +\S+/shop.yml:6 +works +a sliding window: any second; there each second of the clock`,
		`unit: month +\S+/mail.yaml:14 +works +a quota for each month of the calendar, in UTC; there for each 30 days since 1970`,
		`metadata +\S+/shop.yml:\d+ +ignored +responses have no metadata`,
		`replaces burst +\S+/shop.yml:\d+ +ignored +no limit of the domain has this name`,
	} {
		if !regexp.MustCompile("(?m)^" + line + "$").MatchString(out) {
			t.Errorf("no line %s in\n%s", line, out)
		}
	}
	code, converted, errs := rrl(t.Context(), "check-rules", "--convert", theirFolder)
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if code != 0 || errs != "" || os.WriteFile(file, []byte(converted), 0o600) != nil {
		t.Fatalf("%d, %s", code, errs)
	}
	before, _, _ := strings.Cut(out, "\n\n")
	if code, after, errs := rrl(t.Context(), "check-rules", file); code != 0 || errs != "" || after != before+"\n" {
		t.Errorf("%d, %s, the converted file has\n%s, not\n%s", code, errs, after, before)
	}
	for _, args := range [][]string{
		{"--convert", file},
		{"--convert", rulesFile, "--own-key=tenant"},
		{"--convert", "--schema"},
	} {
		if code, out, errs := rrl(t.Context(), append([]string{"check-rules"}, args...)...); code != 1 || out != "" ||
			!strings.HasPrefix(errs, "rrl: ") {
			t.Errorf("%v: %d, %s%s", args, code, out, errs)
		}
	}
}

// check-rules accepts exactly the files that the packages do which serve them, and prints each
// limit.
func TestCheckRulesAcceptsWhatIsServed(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	file := filepath.Join(t.TempDir(), "limits.yaml")
	accepted, refused := 0, 0
	for range proof.Or(2000, 300) {
		text := rulefiles.Draw(func(_ string, n int) int { return random.IntN(n) })
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := rules.ParseFile(file, []byte(text))
		code, out, errs := rrl(t.Context(), "check-rules", file)
		if (err == nil) != (code == 0) || (err == nil) != (errs == "") {
			t.Fatalf("%s%d, %s%v", text, code, errs, err)
		}
		if err != nil {
			refused++
			continue
		}
		accepted++
		rows := strings.Split(out, "\n")
		for _, l := range f.Limits {
			if !slices.ContainsFunc(rows, func(row string) bool { return strings.HasPrefix(row, l.Name+" ") }) {
				t.Errorf("%s%s", text, out)
			}
		}
	}
	if accepted < 30 || refused < 30 {
		t.Errorf("%d accepted, %d refused: too few of a kind", accepted, refused)
	}
}

func TestCheckRulesPrintsTheSchema(t *testing.T) {
	if code, out, errs := rrl(t.Context(), "check-rules", "--schema"); code != 0 || errs != "" ||
		out != rules.Schema() ||
		!json.Valid([]byte(out)) {
		t.Errorf("%d, %s%s", code, out, errs)
	}
	for _, arg := range []string{rulesFile, "--own-key=tenant"} {
		if code, out, errs := rrl(t.Context(), "check-rules", "--schema", arg); code != 1 || out != "" ||
			!strings.HasPrefix(errs, "rrl: check-rules --schema takes") {
			t.Errorf("%s: %d, %s%s", arg, code, out, errs)
		}
	}
}

func TestCheckRulesPrintsFaultsByLine(t *testing.T) {
	code, out, errs := rrl(t.Context(), "check-rules", rulesFile)
	if code != 1 || out != "" || !strings.HasPrefix(errs, rulesFile+":19: uploads: key: \"tenant\" is none of ") {
		t.Errorf("%d, %s%s", code, out, errs)
	}
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte("limits:\n  a:\n    key: all\n    rate: 5\n  b: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs = rrl(t.Context(), "check-rules", file)
	lines := strings.Split(errs, "\n")
	if code != 1 || out != "" || len(lines) != 4 {
		t.Fatalf("%d, %s%s", code, out, errs)
	}
	for i, at := range []string{":4: a: rate: ", `:5: b: it has no field "key"`, ":5: b: it has no rate"} {
		if !strings.HasPrefix(lines[i], file+at) {
			t.Errorf("%s, want %s", lines[i], at)
		}
	}
	if err := os.WriteFile(file, []byte("limits:\n  a:\n    key: all\n    rate: 5/s\n    paths: [\"/a\\e[2J\\nb\"]\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := rrl(t.Context(), "check-rules", file); code != 0 || strings.Count(out, "\n") != 2 ||
		!strings.Contains(out, `/a\u001b[2J\u000ab`) {
		t.Errorf("with control characters: %d, %q, %s", code, out, errs)
	}
	for _, args := range [][]string{{"check-rules"}, {"check-rules", file, file}, {"check-rules", file + ".none"}} {
		if code, _, errs := rrl(t.Context(), args...); code != 1 || !strings.HasPrefix(errs, "rrl: ") {
			t.Errorf("%v: %d, %s", args, code, errs)
		}
	}
}
