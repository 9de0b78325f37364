package envoylimit_test

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// The cases are those that the README of github.com/envoyproxy/ratelimit describes. A case with a
// difference says so. docs/guide/serve-envoy.md has the differences.

// uses sends a request to a domain a, with one descriptor for each of the entries, and checks how
// many of a limit's permits are used: "" if no limit applies.
func (e *envoy) uses(want string, entries ...string) {
	e.t.Helper()
	r := to("a")
	for _, one := range entries {
		r.Descriptors = append(r.Descriptors, of(one))
	}
	e.send(r, want)
}

func each(t *testing.T, file string, test func(e *envoy)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { test(serve(t, s, file)) })
}

// Two values of a key have a rule each, and no other value has one.
func TestARuleForEachValue(t *testing.T) {
	each(t, `
domains:
  a:
    - {key: database, value: users, rate: 500/s}
    - {key: database, value: default, rate: 500/s}
`, func(e *envoy) {
		e.uses("OK: OK 499 of 500/SECOND in 1s", "database=users")
		e.uses("OK: OK 498 of 500/SECOND in 1s", "database=users")
		e.uses("OK: OK 499 of 500/SECOND in 1s", "database=default")
		e.uses("OK: OK", "database=other")
		e.uses("OK: OK", "table=users")
		e.uses("OK: OK", "DATABASE=users")
		e.uses("OK: OK", "database=USERS")
	})
}

// A rule below a rule; each value of a rule without a value has its own limiter; a request for both
// descriptors.
func TestRulesBelowRules(t *testing.T) {
	each(t, `
domains:
  a:
    - key: message_type
      value: marketing
      descriptors:
        - {key: to_number, rate: 5/d}
    - {key: to_number, rate: 100/d}
`, func(e *envoy) {
		const one, two = "message_type=marketing to_number=1", "message_type=marketing to_number=2"
		e.uses("OK: OK 4 of 5/DAY in 24h0m0s", one)
		e.uses("OK: OK 4 of 5/DAY in 24h0m0s", two)
		e.uses("OK: OK 99 of 100/DAY in 24h0m0s", "to_number=1")
		e.uses("OK: OK 3 of 5/DAY in 24h0m0s, OK 98 of 100/DAY in 24h0m0s", one, "to_number=1")
		e.uses("OK: OK", "message_type=marketing")
		for _, left := range []string{"2", "1", "0"} {
			e.uses("OK: OK "+left+" of 5/DAY in 24h0m0s", one)
		}
		// The difference: the other descriptor is not counted.
		e.uses("OVER_LIMIT: OVER_LIMIT 0 of 5/DAY in 24h0m0s, OK 98 of 100/DAY in 24h0m0s", one, "to_number=1")
	})
}

// The most specific rule applies: that with the value. A rate of 0 refuses.
func TestTheMostSpecificRuleApplies(t *testing.T) {
	each(t, `
domains:
  a:
    - {key: remote_address, rate: 10/s}
    - {key: remote_address, value: 50.0.0.5, rate: 0/s}
`, func(e *envoy) {
		e.uses("OK: OK 9 of 10/SECOND in 1s", "remote_address=50.0.0.1")
		e.uses("OVER_LIMIT: OVER_LIMIT 0 of 0/SECOND", "remote_address=50.0.0.5")
	})
}

// The rule must be as deep as the descriptor.
func TestARuleIsAsDeepAsTheDescriptor(t *testing.T) {
	each(t, `
domains:
  a:
    - {key: key, value: value, rate: 300/s}
    - {key: deep, value: value, descriptors: [{key: subkey, rate: 300/s}]}
`, func(e *envoy) {
		e.uses("OK: OK 299 of 300/SECOND in 1s", "key=value")
		e.uses("OK: OK", "key=value subkey=subvalue")
		e.uses("OK: OK 299 of 300/SECOND in 1s", "deep=value subkey=subvalue")
		e.uses("OK: OK", "deep=value")
		e.uses("OK: OK", "deep=value subkey=subvalue more=1")
	})
}

// If the rule with the value has no rule for the next entry, the rule without a value is not tried.
func TestNoSecondAttemptAtAnEarlierEntry(t *testing.T) {
	each(t, `
domains:
  a:
    - {key: k, value: v, rate: 1/s}
    - {key: k, descriptors: [{key: l, rate: 2/s}]}
`, func(e *envoy) {
		e.uses("OK: OK", "k=v l=1")
		e.uses("OK: OK 1 of 2/SECOND in 1s", "k=other l=1")
	})
}

// An unlimited descriptor tells itself from one without a rule by its remaining requests.
func TestUnlimited(t *testing.T) {
	each(t, `
domains:
  a:
    - {key: ldap, rate: unlimited}
    - {key: azure, rate: 100/m}
`, func(e *envoy) {
		e.uses("OK: OK 4294967295", "ldap=x")
		e.uses("OK: OK 4294967295, OK 99 of 100/MINUTE in 1m0s, OK", "ldap=x", "azure=x", "other=x")
	})
}

// The rule in shadow mode counts, and never refuses.
func TestShadow(t *testing.T) {
	each(t, `
domains:
  a:
    - key: service
      descriptors:
        - {key: user, value: a, rate: 1/s, shadow: true}
        - {key: user, value: b, rate: 2/s}
`, func(e *envoy) {
		e.uses("OK: OK 0 of 1/SECOND in 1s", "service=auth user=a")
		e.uses("OK: OK 0 of 1/SECOND in 1s", "service=auth user=a")
		e.uses("OK: OK 0 of 1/SECOND in 1s, OK 1 of 2/SECOND in 1s", "service=auth user=a", "service=auth user=b")
		e.uses("OK: OK 0 of 2/SECOND in 1s", "service=auth user=b")
		e.uses("OVER_LIMIT: OVER_LIMIT 0 of 2/SECOND in 1s", "service=auth user=b")
	})
}

// A rule that replaces another one takes its place in requests to which both apply, and the other
// one is not counted.
func TestReplaces(t *testing.T) {
	each(t, `
domains:
  a:
    - {key: key_1, value: value_1, descriptors: [{key: user, value: b, rate: 5/s, name: specific}]}
    - {key: key_2, value: value_2, descriptors: [{key: user, value: b, rate: 10/s, replaces: [specific]}]}
`, func(e *envoy) {
		const one, two = "key_1=value_1 user=b", "key_2=value_2 user=b"
		e.uses("OK: OK 4 of 5/SECOND (specific) in 1s", one)
		e.uses("OK: OK 9 of 10/SECOND in 1s", two)
		e.uses("OK: OK, OK 8 of 10/SECOND in 1s", one, two)
		e.uses("OK: OK 3 of 5/SECOND (specific) in 1s", one)
	})
}

// A * stands for any text, anywhere in a value. Each value has its own limiter, unless the rule is
// shared.
func TestPatterns(t *testing.T) {
	each(t, `
domains:
  a:
    - {key: key, value: value*, rate: 20/m}
    - {key: key, value: value5, rate: 5/m}
    - {key: path, value: /api/*/action, rate: 20/m}
    - {key: path, value: /api/*, rate: 10/m}
    - {key: route, value: /api/*/resource/*/action, rate: 20/m}
    - {key: files, value: files/*, shared: true, rate: 3/h}
    - {key: files, value: files/*/*, rate: 9/h}
    - {key: a.b, value: (*, rate: 1/h}
`, func(e *envoy) {
		const twenty = "OK: OK 19 of 20/MINUTE in 1m0s"
		e.uses(twenty, "key=value1")
		e.uses(twenty, "key=value2")
		e.uses(twenty, "key=value")
		e.uses("OK: OK 4 of 5/MINUTE in 1m0s", "key=value5")
		e.uses("OK: OK", "key=other")
		e.uses("OK: OK", "key=avalue")
		e.uses(twenty, "path=/api/123/action")
		e.uses("OK: OK 9 of 10/MINUTE in 1m0s", "path=/api/123/other")
		e.uses("OK: OK", "path=/apis/123/action")
		e.uses(twenty, "route=/api/v1/resource/123/action")
		e.uses("OK: OK", "route=/api/v1/123/action")
		e.uses("OK: OK 2 of 3/HOUR in 1h0m0s", "files=files/a.pdf")
		e.uses("OK: OK 1 of 3/HOUR in 1h0m0s", "files=files/b.csv")
		e.uses("OK: OK 0 of 3/HOUR in 1h0m0s", "files=files/c/d") // the first pattern in the file
		e.uses("OVER_LIMIT: OVER_LIMIT 0 of 3/HOUR in 1h0m0s", "files=files/e\n")
		e.uses("OK: OK 0 of 1/HOUR in 1h0m0s", "a.b=(")
		e.uses("OK: OK", "axb=(")
	})
}

// The difference: a key is not joined with its value, so an underscore does not make two rules
// alike.
func TestKeysAndValuesAreApart(t *testing.T) {
	each(t, `
domains:
  a:
    - {key: k, value: v_w, rate: 1/s}
    - {key: k_v, value: w, rate: 2/s}
`, func(e *envoy) {
		e.uses("OK: OK 0 of 1/SECOND in 1s", "k=v_w")
		e.uses("OK: OK 1 of 2/SECOND in 1s", "k_v=w")
	})
}
