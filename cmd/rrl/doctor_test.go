package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// Each state has one finding, and no other; each finding has advice.
func TestDoctorFindsWhatIsWrongWithLimiters(t *testing.T) {
	const hour = 3_600_000
	java, java16 := rrltest.JavaRecord(rratelimiter.Redisson317, 1), rrltest.JavaRecord(rratelimiter.Redisson321, 1)
	onShops(t, func(t *testing.T, s shop) {
		for _, c := range []struct {
			code, severity, advice string // "": nothing is wrong
			make                   func()
		}{
			{"", "", "", func() { s.limiter("x", "10", "60000", "0") }},
			{"", "", "", func() {
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "6", -70_000, java, -5, rrltest.GoRecord("abc", 3))
			}},
			{"", "", "", func() { // Redisson from 3.17.0 on reads both
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "8", -6, java, -5, java16)
			}},
			{"", "", "", func() { // as WithGranularity dates records
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "7", 6000, rrltest.GoRecord("abc", 3))
			}},
			{"", "", "", func() {
				s.limiter("x", "10", "1000", "1")
				s.state("x", "one", "9", -5, java)
			}},
			{"", "", "", func() { // of another program
				s.must(s.rdb.Set(t.Context(), "{cart:17}:value", "12.50", 0).Err())
				s.must(s.rdb.Set(t.Context(), "{cart:17}:value:eur", "12.50", 0).Err())
			}},
			{"refuses-all", "note", "rrl set x RATE", func() { s.limiter("x", "0", "60000", "0") }},
			{"doubtful-records", "warning", "negative number", func() { // of a request for -1 permits by Redisson
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "10", -5, "\x08abcdefgh\xff\xff\xff\xff")
			}},
			{"broken-config", "error", "rrl set x RATE", func() { s.limiter("x", "ten", "60000", "0") }},
			{"broken-config", "error", "rrl set x RATE", func() {
				s.limiter("x", "10", "60000") // no type: found by its state
				s.state("x", "", "9", -5, java)
			}},
			{"wrong-type", "error", "needs another name", func() {
				s.limiter("x", "10", "60000", "0")
				s.must(s.rdb.RPush(t.Context(), "{x}:value", "1").Err())
			}},
			{"value-missing", "warning", "rrl repair x --yes", func() {
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "", -5, java)
			}},
			{"value-garbled", "error", "rrl repair x --yes", func() {
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "1e1", -5, java)
			}},
			{"stuck", "error", "rrl repair x --yes", func() {
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "0")
			}},
			{"permits-lost", "error", "rrl repair x --yes", func() {
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "3", -5, java)
			}},
			{"permits-gained", "warning", "if no Java service calls release: rrl repair x --client one --yes", func() {
				s.limiter("x", "10", "60000", "1")
				s.state("x", "one", "10", -5, java)
			}},
			{"mixed-formats", "error", "WithRecordFormat", func() {
				s.limiter("x", "10", "60000", "0")
				s.state("x",
					"", "7", -5, rrltest.JavaRecord(rratelimiter.Redisson313, 1), -6, rrltest.GoRecord("abc", 2))
			}},
			{"unknown-records", "warning", "{x}:permits", func() {
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "10", -5, "abc")
			}},
			{"keep-alive-old-java", "error", "rrl set x 10/m --keep-alive 0", func() {
				s.limiter("x", "10", "60000", "0", "keepAliveTime", "3600000")
				s.state("x", "", "9", -5, java)
			}},
			{"keep-alive-java", "note", "3.38.0", func() {
				s.limiter("x", "10", "60000", "0", "keepAliveTime", "3600000")
				s.state("x", "", "9", -5, java16)
			}},
			{"future-records", "warning", "clock", func() {
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "9", 20_000, java)
			}},
			{"future-records", "error", "rrl reset x", func() {
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "9", hour, java)
			}},
			{"expires", "note", "rrl set x 10/m --keep-alive 1h", func() {
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "9", -5, java)
				for _, key := range []string{"x", "{x}:value", "{x}:permits"} {
					s.must(s.rdb.Expire(t.Context(), key, time.Hour).Err())
				}
			}},
			{"expires", "note", "rrl set x 10/m --keep-alive 1h", func() {
				s.limiter("x", "10", "60000", "1")
				s.state("x", "one", "9", -5, java)
				s.must(s.rdb.Expire(t.Context(), "x", time.Hour).Err())
			}},
			{"state-expires", "warning", "PERSIST", func() {
				s.limiter("x", "10", "60000", "0")
				s.state("x", "", "9", -5, java)
				s.must(s.rdb.Expire(t.Context(), "{x}:permits", time.Hour).Err())
			}},
			{"orphaned-clients", "warning", "rrl gc", func() {
				s.limiter("x", "10", "60000", "1")
				s.state("x", "one", "9", -2*hour, java)
			}},
			{"orphaned-clients", "warning", "rrl gc", func() { // no client reads them
				s.limiter("x", "10", "60000", "0")
				s.state("x", "one", "10")
			}},
			{"orphaned-clients", "warning", "rrl gc", func() { s.state("x", "one", "10") }},
			{"no-rate", "warning", "rrl set x RATE", func() { s.state("x", "", "", -5, java) }},
		} {
			s.must(s.rdb.FlushDB(t.Context()).Err())
			c.make()
			code, out, errs := s.run("doctor", "--json")
			var limiters []map[string]any
			for _, f := range objects(t, out) {
				if f["limiter"] != nil {
					limiters = append(limiters, f)
				}
			}
			if errs != "" || (code != 0) != (c.severity == "error" || c.severity == "warning") {
				t.Errorf("%s: exit code %d, errors %q", c.code, code, errs)
			}
			if c.code == "" {
				if len(limiters) > 0 {
					t.Errorf("nothing is wrong, but it says %v", limiters)
				}
				continue
			}
			if len(limiters) != 1 || limiters[0]["code"] != c.code || limiters[0]["severity"] != c.severity ||
				!strings.Contains(
					limiters[0]["advice"].(string), c.advice,
				) || limiters[0]["limiter"].(map[string]any)["name"] != "x" {
				t.Errorf("%s: it says %v", c.code, limiters)
			}
			_, text, _ := s.run("doctor")
			contains(t, text, strings.ToUpper(c.severity), "x", c.code, "-> ")
		}
	})
}

func TestDoctorOfOneLimiter(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("good", "10", "60000", "0")
		s.limiter("bad", "10", "60000", "0")
		s.state("bad", "", "3")
		s.state("left", "", "", -5, rrltest.GoRecord("abc", 1))
		contains(t, s.ok("doctor", "good"), "1 limiter looked at", "this host's clock is ")
		if code, out, _ := s.run("doctor", "good", "bad"); code != 1 || !strings.Contains(out, "stuck") ||
			strings.Contains(out, "no-rate") {
			t.Errorf("exit code %d, output\n%s", code, out)
		}
		if code, out, _ := s.run("doctor", "left"); code != 1 || !strings.Contains(out, "no-rate") {
			t.Errorf("exit code %d, output\n%s", code, out)
		}
		s.fails(1, "there is no limiter", "doctor", "nothing")
		s.must(s.rdb.Set(t.Context(), "{cart:17}:value", "12.50", 0).Err())
		s.fails(1, "there is no limiter cart:17", "doctor", "cart:17")
	})
}

// If the records of a limiter take several steps to read, the sum is read again in one step.
func TestDoctorAddsUpManyRecordsInOneStep(t *testing.T) {
	s := newShop(t, redistest.Shared(t))
	s.limiter("many", "10000", "3600000", "0")
	var all []redis.Z
	for i := range 1500 {
		all = append(
			all,
			redis.Z{
				Score:  float64(rrltest.Now(t, s.rdb) - int64(i)),
				Member: rrltest.Record(rratelimiter.Redisson317, fmt.Sprintf("%08d", i), 2),
			},
		)
	}
	s.must(s.rdb.ZAdd(t.Context(), "{many}:permits", all...).Err())
	s.state("many", "", "6000")
	if code, out, _ := s.run("doctor", "many"); code != 1 ||
		!strings.Contains(out, "6,000 stored as free + 3,000 in records is 1,000 less than 10,000") {
		t.Errorf("exit code %d, output\n%s", code, out)
	}
	s.state("many", "", "7000")
	s.ok("doctor", "many")
}

func TestDoctorFindsWhatIsWrongWithTheServer(t *testing.T) {
	server := redistest.Real(t, "--maxmemory", "200mb", "--maxmemory-policy", "volatile-lru")
	s := newShop(t, server)
	found := func(code string, want ...string) {
		t.Helper()
		got, out, _ := s.run("doctor", "--json")
		var codes []string
		for _, f := range objects(t, out) {
			if f["limiter"] == nil {
				codes = append(codes, f["severity"].(string)+" "+f["code"].(string))
			}
		}
		if !slices.Equal(codes, want) || fmt.Sprint(got) != code {
			t.Errorf("exit code %d, %q, want %s, %q", got, codes, code, want)
		}
	}
	s.limiter("x", "10", "60000", "0")
	found("0", "note no-persistence")
	s.must(s.rdb.Expire(t.Context(), "x", time.Hour).Err())
	found("1", "warning eviction", "note no-persistence")
	s.must(s.rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-random").Err())
	found("1", "error eviction", "note no-persistence")
	s.must(s.rdb.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	s.must(s.rdb.ConfigSet(t.Context(), "save", "3600 1").Err())
	found("0")
	s.must(s.rdb.ConfigSet(t.Context(), "maxmemory", "900kb").Err())
	found("1", "warning memory")
	if _, out, _ := s.run("doctor"); !regexp.MustCompile(`(?m)^ +\d+ % of maxmemory is used: `).MatchString(out) {
		t.Errorf("it says\n%s", out)
	}
}

func TestDoctorMeasuresTheClock(t *testing.T) {
	server := redistest.Embedded(t)
	server.Mini().SetTime(time.Now().Add(2 * time.Hour))
	s := newShop(t, server)
	code, out, _ := s.run("doctor")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	contains(t, out, "this host's clock is 2h behind Redis's", "ERROR", "clock-skew", "NTP")
}

// Names may contain anything, and a terminal interprets control characters in them.
func TestDoctorKeepsControlCharactersFromTheTerminal(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("\x1b[31m", "10", "60000", "0")
		s.state("\x1b[31m", "", "10", -100, "\x1b]odd")
		s.must(s.rdb.Expire(t.Context(), "{\x1b[31m}:value", time.Hour).Err())
		code, out, errs := s.run("doctor")
		contains(
			t, out, "unknown-records", `find out who writes to "{\x1b[31m}:permits"`, "state-expires",
			`the TTL of "{\x1b[31m}:value"`,
		)
		if code != 1 || errs != "" || strings.Contains(out, "\x1b") {
			t.Errorf("exit code %d, errors %q, output %q", code, errs, out)
		}
	})
}

// A debt is no fault: doctor finds nothing, and show tells it.
func TestDoctorLeavesADebtAlone(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		l := rratelimiter.NewClient(s.rdb).RateLimiter("x", rratelimiter.WithRate(rratelimiter.PerHour(10)))
		if _, err := l.Charge(t.Context(), 35); err != nil {
			t.Fatal(err)
		}
		s.ok("doctor", "x")
		contains(t, s.ok("show", "x"), "owed        25 permits")
		if one := objects(t, s.ok("show", "x", "--json"))[0]; one["debt"] != 25. || one["future_records"] != 0. ||
			one["consistent"] != true {
			t.Errorf("%v", one)
		}
	})
}
