package rules

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/rulefiles"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// files_test.go gives random files to Parse and to Watch, and requests to the guard.

func TestMain(m *testing.M) { redistest.Random(m, 1000) }

// Each field has values: the generator of files learns a new one in the same commit.
func TestFilesHaveEachField(t *testing.T) {
	for _, c := range []struct {
		fields []string
		values map[string][]string
	}{
		{fileFields, rulefiles.File}, {limitFields, rulefiles.Limit}, {descriptorFields, rulefiles.Descriptor},
	} {
		drawn := append(slices.Collect(maps.Keys(c.values)), "limits", "domains", "descriptors")
		for _, field := range c.fields {
			if !slices.Contains(drawn, field) {
				t.Errorf("rulefiles has no values for %s", field)
			}
		}
	}
}

// What the check of a file accepts, a guard serves: no request meets an error, and the first one
// passes unless the rate of a limit that applies is 0. What the check refuses, Watch refuses.
func TestFilesThatAreAcceptedAreServed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		accepted, refused := 0, 0
		rapid.Check(t, func(rt *rapid.T) {
			text := rulefiles.Draw(func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(rt, what) })
			served, fault := faultOf(t, s, text)
			if fault != "" {
				rt.Fatalf("%s%s", text, fault)
			}
			if served {
				accepted++
			} else {
				refused++
			}
		})
		if few := (accepted + refused) / 8; accepted < few || refused < few {
			t.Errorf("%d accepted, %d refused: too few of a kind", accepted, refused)
		}
	})
}

// faultOf reports whether a file is accepted, and what is wrong with the way in which it is served.
func faultOf(t *testing.T, s *redistest.Server, text string) (accepted bool, fault string) {
	rdb := s.Client()
	if err := rdb.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var failed []string
	guard := httplimit.New()
	guard.Policy = &httplimit.Policy{
		Bound:   1e10,
		Logger:  slog.New(slog.DiscardHandler),
		OnError: func(_ context.Context, err error) { failed = append(failed, err.Error()) },
	}
	config := Config{Client: rratelimiter.NewClient(rdb), Redis: rdb, Logger: guard.Policy.Logger}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	f, refused := ParseFile(file, []byte(text))
	if err := Watch(ctx, guard, file, config); (err == nil) != (refused == nil && f.Limits != nil) {
		return false, fmt.Sprintf("the check says %v, Watch %v", refused, err)
	}
	if err := WatchDomains(ctx, file, config, func([]Domain) {}); (err == nil) != (refused == nil && f.Domains != nil) {
		return false, fmt.Sprintf("the check says %v, WatchDomains %v", refused, err)
	}
	if refused != nil || f.Limits == nil {
		return refused == nil, ""
	}
	for i := range 6 {
		url := []string{"http://example.com/", "http://x.example.com/a/b"}[i/3]
		r := httptest.NewRequest([]string{"GET", "POST"}[i/2%2], url, nil)
		r.RemoteAddr = []string{"192.0.2.7:1", "198.51.100.1:1"}[i%2]
		if i%2 == 1 {
			r.Header.Set("X-Plan", "pro")
		}
		never := slices.ContainsFunc(f.Limits, func(l Limit) bool {
			rate := l.rate(r)
			return rate.Interval > 0 && rate.Permits == 0 && !l.Shadow && l.covers(r) && !config.exempt(r, l.Exempt)
		})
		d := guard.Decide(r)
		if d.Err != nil || len(failed) > 0 {
			return true, fmt.Sprintf("the check accepts it, and request %d gets %v, %v, %q",
				i, d.Outcome, d.Err, failed)
		}
		if i == 0 && !d.Outcome.Passed() && !never {
			return true, fmt.Sprintf("the first request is %v by %v", d.Outcome, d.Refused())
		}
		if never && d.Outcome.Passed() && f.Limits[0].key == nil {
			return true, fmt.Sprintf("request %d is %v with a rate of 0", i, d.Outcome)
		}
	}
	return true, ""
}

// Watch checks a file with the options of its client: a lease does not go together with the records
// of Redisson 3.13, and a client with an invalid option serves nothing.
func TestAFileThatTheClientCannotServeIsRefused(t *testing.T) {
	server := limittest.New(t)
	old := rratelimiter.WithLimiterDefaults(rratelimiter.WithRecordFormat(rratelimiter.Redisson313))
	const lease = "limits:\n  a:\n    key: all\n    rate: 10/s\n    lease: 100ms\n"
	const penalty = "limits:\n  a:\n    key: all\n    quota: 10/day\n    penalty: 1s\n"
	const domain = "domains:\n  a:\n    - key: k\n      rate: 10/s\n      lease: 100ms\n"
	for _, c := range []struct {
		text, want string
		client     *rratelimiter.Client
	}{
		{lease, "limits.yaml:5: a: lease: with the rate 10/s: WithLease needs records that tell", server.Client(old)},
		{domain, "limits.yaml:5: a: lease: with the rate 10/s: WithLease needs records that tell", server.Client(old)},
		{lease, "limits.yaml:4: a: rate: the clock is nil", server.Client(rratelimiter.WithClock(nil))},
		{penalty, "limits.yaml:5: a: penalty: the clock is nil", server.Client(rratelimiter.WithClock(nil))},
		{lease, "", server.Client()},
		{domain, "", server.Client()},
		{penalty, "", server.Client()},
	} {
		file := filepath.Join(t.TempDir(), "limits.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		config := Config{Client: c.client, Redis: server.Redis()}
		var err error
		if c.text == domain {
			err = WatchDomains(t.Context(), file, config, func([]Domain) {})
		} else {
			err = Watch(t.Context(), httplimit.New(), file, config)
		}
		if got := fmt.Sprint(err); c.want == "" != (err == nil) || !strings.Contains(got, c.want) {
			t.Errorf("%s%v, want %q", c.text, err, c.want)
		}
		if _, err := ParseFile(file, []byte(c.text)); err != nil {
			t.Errorf("%s%v", c.text, err)
		}
	}
}

// Of fields that are refused together, the documentation of each names the others. The fields from
// and time-zone belong to a quota.
func TestEachFieldSaysWhatItIsNotCombinedWith(t *testing.T) {
	accepts := func(form string, others []string, values map[string][]string, set ...string) bool {
		return slices.ContainsFunc(others, func(other string) bool {
			texts := []string{other}
			for _, field := range set {
				var longer []string
				for _, text := range texts {
					for _, value := range values[field] {
						if value != "false" && !strings.Contains(text, " "+field+":") {
							longer = append(longer, text+", "+field+": "+value)
						}
					}
				}
				texts = longer
			}
			return slices.ContainsFunc(texts, func(text string) bool {
				_, err := ParseFile("f", []byte(fmt.Sprintf(form, text)))
				return err == nil
			})
		})
	}
	docs := rig.Docs(t, ".")
	limits := map[string]string{}
	for _, bullet := range strings.Split(docs[""], "\n  - ")[1:] {
		field, text, _ := strings.Cut(bullet, ": ")
		text, _, _ = strings.Cut(text, "\n\n")
		limits[field] = text
	}
	descriptors := map[string]string{}
	for _, field := range descriptorFields {
		name := ""
		for _, word := range strings.Split(field, "-") {
			name += strings.ToUpper(word[:1]) + word[1:]
		}
		descriptors[field] = strings.ToLower(docs["Descriptor."+name])
	}
	for _, of := range []struct {
		form   string
		others []string // what a file needs beside some of the fields
		fields []string
		values map[string][]string
		docs   map[string]string
	}{
		{
			"limits: {a: {%s}}", []string{"key: all", "key: all, rate: 5/s", "key: all, quota: 5/day"},
			[]string{"rate", "plans", "quota", "cost", "cost-after", "lease", "penalty", "shadow"}, rulefiles.Limit,
			limits,
		},
		{
			"domains: {d: [{%s}, {key: b, name: one, rate: 1/s}]}",
			[]string{"key: k", "key: k, rate: 5/s", "key: k, rate: 5/s, value: 'a*'", "key: k, value: 'a*'"},
			[]string{
				"value", "rate", "postpaid", "shadow", "shared", "lease", "name", "value-to-metric", "detailed-metric",
			},
			rulefiles.Descriptor, descriptors,
		},
	} {
		sets := rig.Refused(of.fields, func(set ...string) bool {
			return !accepts(of.form, of.others, of.values, set...)
		})
		if len(sets) == 0 {
			t.Errorf("%s: nothing is refused", of.form)
		}
		for _, set := range sets {
			for i, one := range set {
				if others := slices.Delete(slices.Clone(set), i, i+1); !rig.SaysNotWith(of.docs[one], others...) {
					t.Errorf("%s: the documentation of %s does not say that it cannot be combined with %v",
						of.form, one, others)
				}
			}
		}
	}
}
