package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

var times = regexp.MustCompile(`\b\d+(\.\d+)?(ms|s)\b ago`)

func TestShowTellsAllAboutALimiter(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("orders", "20", "60000", "0", "keepAliveTime", "0")
		s.state(
			"orders", "", "7", -60500, rrltest.JavaRecord(rratelimiter.Redisson321, 1), -50000,
			rrltest.GoRecord("abc", 2),
			-30000, rrltest.GoRecord("abc", 3), -100, rrltest.GoRecord("xyz", 4), -200,
			rrltest.Record(rratelimiter.Redisson321, "fedcba9876543210", 3),
		)
		got := times.ReplaceAllString(s.ok("show", "orders"), "AGO")
		want := `orders
rate        20/m, OVERALL
TTL         none
free        ████████░░░░░░░░░░░░  8 of 20
in use      12 permits in 4 live records
            granted from AGO to AGO
by time     `
		if !strings.HasPrefix(got, want) {
			t.Errorf("it shows\n%s\nwant\n%s", got, want)
		}
		contains(t, got, `by writer   Go client 616263    5 permits in 2 records
            Go client 78797a    4 permits in 1 record
            Java or unknown     3 permits in 1 record
format      Redisson 3.17.0 to 3.20.1: 3 records, all written by Go
            Redisson 3.21.0 and later: 2 records
read by     Redisson 3.17.0 and later
Redisson    records of Redisson 3.21.0 and later; Redisson 3.38.0 or later has called trySetRate or setRate
expired     1 permit in 1 record, free again from the next use on
adds up     yes: 7 stored as free + 13 in records = 20
`)
		one := objects(t, s.ok("show", "orders", "--json"))[0]
		for field, want := range map[string]any{
			"name": "orders", "rate": "20/m", "permits": 20., "interval_ms": 60000., "type": "OVERALL", "value": "7",
			"available": 8.,
			"used":      12., "live_records": 4., "expired_records": 1., "expired_permits": 1., "future_records": 0.,
			"ttl_ms":     0.,
			"consistent": true, "drift": 0., "one_step": true,
		} {
			if one[field] != want {
				t.Errorf("%s is %v, want %v", field, one[field], want)
			}
		}
		sum, late := 0., 0.
		for i, n := range one["axis"].([]any) {
			sum += n.(float64)
			if i >= 50 {
				late += n.(float64)
			}
		}
		if sum != 12 || late != 7 || len(one["axis"].([]any)) != axis {
			t.Errorf("the axis is %v", one["axis"])
		}
	})
}

func TestShowTellsWhenAPermitIsFree(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("orders", "5", "60000", "0")
		s.state("orders", "", "1", -20000, rrltest.GoRecord("abc", 4))
		if one := objects(t, s.ok("show", "orders", "--json"))[0]; one["retry_after_ms"] != 0. ||
			strings.Contains(s.ok("show", "orders"), "the next permit") {
			t.Errorf("while one is free: %v", one)
		}
		s.limiter("mails", "4", "3600000", "0")
		s.state("mails", "", "0", -600_000, rrltest.GoRecord("abc", 4))
		wait := objects(t, s.ok("show", "mails", "--json"))[0]["retry_after_ms"].(float64)
		if wait > 3_000_000 || wait < 2_900_000 {
			t.Errorf("in %v ms, not in 50 minutes", wait)
		}
		if text := s.ok("show", "mails"); !regexp.MustCompile(`\n {12}the next permit is free in (50m|49m\d+s)\n`).
			MatchString(text) {
			t.Errorf("it shows\n%s", text)
		}
		s.limiter("off", "0", "60000", "0")
		if one := objects(t, s.ok("show", "off", "--json"))[0]; one["retry_after_ms"] != nil {
			t.Errorf("at a rate of 0: %v", one)
		}
	})
}

// On a narrow terminal no chart and no table is wrapped, which would break them. The text of show
// may be.
func TestANarrowTerminal(t *testing.T) {
	s := shop{t: t, s: redistest.Embedded(t)}
	s.rdb = s.s.Client()
	s.limiter("a:limiter:with:a:long:name", "20", "60000", "0", "keepAliveTime", "3600000")
	s.state("a:limiter:with:a:long:name", "", "7", -50000, rrltest.GoRecord("abc", 2), -100, rrltest.GoRecord("xyz", 4))
	s.limiter("pc", "1000", "60000", "1")
	s.state("pc", "2f6c8a5e-8a37-4a55-9d0e-1b6f4a0c9a11", "997", -50000, rrltest.GoRecord("abc", 3))
	s.limiter("broken", "ten", "60000", "0")
	for _, width := range []int{60, 80, 100} {
		c := &common{flags: newShow().Flags(), Flags: connect.Flags{Address: s.s.URL(), Timeout: time.Minute}}
		on, err := c.open(t.Context())
		s.must(err)
		var out strings.Builder
		on.Out, on.Width = &out, width
		s.must(on.show(t.Context(), "a:limiter:with:a:long:name"))
		lines := strings.Split(out.String(), "\n")
		at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "by time") })
		for _, line := range lines[at : at+2] {
			if cells := ansi.StringWidth(line); cells > width || cells < min(width, 72)-1 {
				t.Errorf("on %d cells:\n%s", width, out.String())
			}
		}
		if !strings.HasSuffix(lines[at], "█") || !strings.HasSuffix(lines[at+1], " now") {
			t.Errorf("on %d cells, what was granted lately is not above now:\n%s", width, out.String())
		}
		out.Reset()
		s.must(on.ls(t.Context(), "*"))
		s.must(on.show(t.Context(), "pc"))
		lines = strings.Split(out.String(), "\n")
		for _, line := range lines {
			if ansi.StringWidth(line) > width {
				t.Errorf("%d cells, not %d: %s", ansi.StringWidth(line), width, line)
			}
		}
		if !strings.HasPrefix(lines[0], "NAME ") || !strings.Contains(lines[0], "  FREE") {
			t.Errorf("on %d cells:\n%s", width, out.String())
		}
		on.Close()
	}
}

// A record in a bucket that is not over may be a lease; any other one that is dated ahead may not.
func TestShowMarksWhatMayBeALease(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		bucket := func(id string, permits byte) string { return "\x0c" + id + string([]byte{permits, 0, 0, 0}) }
		s.limiter("orders", "100", "60000", "0")
		s.state(
			"orders", "", "60", 5000, bucket("Goabc\x28\x00\x00\x00123", 10), 5000,
			bucket("Goxyz\x28\x00\x00\x00123", 20), -100,
			bucket("Goabc\x28\x00\x00\x00124", 4), 900, rrltest.GoRecord("abc", 3), 900,
			rrltest.JavaRecord(rratelimiter.Redisson317, 3),
		)
		contains(
			t, s.ok("show", "orders"), "ahead       30 permits in 2 records of Go clients, dated up to ",
			"some of them may be unused",
		)
		one := objects(t, s.ok("show", "orders", "--json"))[0]
		if one["ahead_records"] != 2. || one["ahead_permits"] != 30. || one["future_records"] != 0. ||
			one["used"] != 40. {
			t.Errorf("%v", one)
		}
		l := rrltest.Client(s.rdb).
			RateLimiter("leased",
				rratelimiter.WithRate(rratelimiter.PerMinute(1000)), rratelimiter.WithLease(6*time.Second))
		if ok, err := l.TryAcquire(t.Context(), 10); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if one := objects(t, s.ok("show", "leased", "--json"))[0]; one["ahead_records"] != 1. ||
			one["ahead_permits"] != 20. {
			t.Errorf("a lease: %v", one)
		}
	})
}

func TestShowTellsWhatIsWrong(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("drift", "10", "60000", "0")
		s.state("drift", "", "4", -100, rrltest.GoRecord("abc", 2))
		contains(
			t, s.ok("show", "drift"), "adds up     NO: 4 stored as free + 2 in records is 4 less than 10",
			"rrl doctor drift says what to do",
		)
		s.limiter("future", "10", "60000", "0")
		s.state("future", "", "8", 3_615_000, rrltest.GoRecord("abc", 2))
		contains(
			t, s.ok("show", "future"), "granted from 1h ahead to 1h ahead",
			"future      2 permits in 1 record, the last one dated 1h ahead: a clock is wrong",
		)
		s.limiter("far", "10", "60000", "0")
		s.state("far", "", "8")
		// µs
		s.must(s.rdb.ZAdd(t.Context(), "{far}:permits",
			redis.Z{Score: 1.78e15, Member: rrltest.GoRecord("abc", 2)}).Err())
		for _, args := range [][]string{{"show", "far", "--json"}, {"ls", "far", "--json"}} {
			if one := objects(t, s.ok(args...))[0]; one["newest"] != "9999-12-31T23:59:59.999999Z" {
				t.Errorf("%q of a record far ahead: %v", args, one)
			}
		}
		s.limiter("value", "10", "60000", "0")
		s.state("value", "", "ten", -100, rrltest.GoRecord("abc", 2))
		contains(t, s.ok("show", "value"), `adds up     NO: the free permits are stored as "ten", no whole number`,
			"8 of 10")
		s.limiter("broken", "ten", "60000", "0")
		contains(
			t, s.unusable("show", "broken"),
			"none that can be used: its rate is no whole number\n            interval = 60000\n            rate = ten\n            type = 0\n",
		)
		s.must(s.rdb.RPush(t.Context(), "{wrong}:permits", "x").Err())
		s.limiter("wrong", "10", "60000", "0")
		contains(
			t, s.unusable("show", "wrong"),
			"WRONG       \"{wrong}:permits\" is a list, not a zset: no call works\nrate        10/m, OVERALL\n",
		)
		if text := s.unusable("show", "wrong"); strings.Contains(text, "adds up") {
			t.Errorf("where a key is another program's it shows\n%s", text)
		}
		if one := objects(t, s.unusable("show", "wrong", "--json"))[0]; one["consistent"] != false ||
			one["fault"] != `"{wrong}:permits" is a list, not a zset` {
			t.Errorf("where a key is another program's it shows %v", one)
		}
		s.fails(1, "there is no limiter nothing; rrl ls lists", "show", "nothing")
		s.fails(1, "needs the name of a limiter", "show")
	})
}

// A rate of 0, times that a time.Duration does not hold, and the record of a request for -1 permits
// by Redisson.
func TestShowExplainsOddNumbers(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		if text := s.ok("set", "zero", "0/m"); text != "zero: 0/m, new\n" {
			t.Error(text)
		}
		contains(t, s.ok("show", "zero"), "rate        0/m, OVERALL: every request is refused\n", "0 of 0")
		contains(t, s.ok("ls", "zero"), "0/m")
		if one := objects(t, s.ok("watch", "zero", "--for", "1s", "--json"))[0]; one["rate"] != "0/m" ||
			one["available"] != 0. {
			t.Errorf("watch: %v", one)
		}
		s.limiter("long", "10", "9223372036854775807", "0", "keepAliveTime", "1000000000000000000")
		s.state("long", "", "7", -100, rrltest.GoRecord("abc", 3))
		contains(
			t, s.ok("show", "long"), "10/2562047h47m16.854s keep-alive 2562047h47m16.854s, OVERALL\n",
			"the interval is longer than that: 9223372036854775807 ms\n",
			"the keep-alive is longer than that: 1000000000000000000 ms\n", "7 of 10", "adds up     yes: 7",
		)
		s.limiter("longest", "10", "9223372036854", "0")
		if text := s.ok("show", "longest"); strings.Contains(text, "longer") {
			t.Error(text)
		}
		for value, want := range map[string]string{"11": "1 more than 10", "10": "yes: 10", "8": "yes: 8", "": ""} {
			name := "negative" + value
			s.limiter(name, "10", "60000", "0")
			s.state(name, "", value, -100, "\x08abcdefgh\xff\xff\xff\xff")
			state, err := rrltest.Client(s.rdb).RateLimiter(name).State(t.Context())
			s.must(err)
			one := objects(t, s.ok("show", name, "--json"))[0]
			if one["used"] != float64(state.Used) || one["available"] != float64(state.Available) ||
				one["consistent"] != state.Consistent {
				t.Errorf("%s: %v, and by State %+v", name, one, state)
			}
			if value != "" {
				contains(t, s.ok("show", name), "adds up     ", want)
			}
		}
	})
}

// Records of real releases of Redisson (testdata) are distinguished as far as they differ, and
// doctor has no findings for them.
func TestShowGuessesTheRedisson(t *testing.T) {
	files, err := filepath.Glob("../../testdata/*/part.msgpack")
	if err != nil || len(files) < 11 {
		t.Fatalf("%d states: %v", len(files), err)
	}
	s := shop{t: t, s: redistest.Embedded(t)}
	s.rdb = s.s.Client()
	for _, file := range files {
		release := filepath.Base(filepath.Dir(file))
		data, err := os.ReadFile(file)
		s.must(err)
		if code, out, errs := s.with(string(data), "restore", "--as", release, "--now"); code != 0 {
			t.Fatalf("%s: %s%s", release, out, errs)
		}
		var major, minor int
		_, err = fmt.Sscanf(release, "%d.%d", &major, &minor)
		s.must(err)
		want := "records of Redisson 3.21.0 and later"
		switch {
		case major > 3 || minor >= 38:
			want += "; Redisson 3.38.0 or later has called trySetRate or setRate"
		case minor >= 21:
		case minor >= 17:
			want = "records of Redisson 3.17.0 to 3.20.1"
		case release == "3.16.8":
			want = "records of Redisson 3.16.4 to 3.16.8"
		default:
			want = "records of Redisson 3.13.3 to 3.16.3"
		}
		one := objects(t, s.ok("show", release, "--json"))[0]
		if one["redisson_guess"] != want || one["used"] != 3. || one["consistent"] != true {
			t.Errorf("of %s it shows %v", release, one)
		}
		if !strings.Contains(want, "3.13.3") { // its ids are too short to identify the client
			contains(t, s.ok("show", release), "Java or unknown     3 permits in 2 records")
		}
		s.ok("doctor", release)
	}
}

func TestShowReadsManyRecordsPageByPage(t *testing.T) {
	s := shop{t: t, s: redistest.Shared(t)}
	s.rdb = s.s.Client()
	s.limiter("many", "10000", "3600000", "0")
	var all []redis.Z
	for i := range 2500 {
		all = append(
			all,
			redis.Z{
				Score:  float64(rrltest.Now(t, s.rdb) - int64(i/7)),
				Member: rrltest.Record(rratelimiter.Redisson317, fmt.Sprintf("%08d", i), 2),
			},
		)
	}
	s.must(s.rdb.ZAdd(t.Context(), "{many}:permits", all...).Err())
	s.state("many", "", "5000")
	one := objects(t, s.ok("show", "many", "--json"))[0]
	if one["used"] != 5000. || one["live_records"] != 2500. || one["consistent"] != true || one["one_step"] != false {
		t.Errorf("it shows %v", one)
	}
}

// A part of a configuration is a broken limiter, if nothing else is in the hash; it is found even
// without any state.
func TestBrokenConfigurationsAreFound(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.must(s.rdb.HSet(t.Context(), "half", "rate", "10", "interval", "1000").Err())
		s.must(s.rdb.HSet(t.Context(), "kept", "interval", "1000", "type", "0", "keepAliveTime", "5").Err())
		s.must(s.rdb.HSet(t.Context(), "mine", "rate", "10", "type", "gold", "colour", "red").Err())
		s.must(s.rdb.HSet(t.Context(), "also", "rate", "10").Err())
		rows := objects(t, s.ok("ls", "--json"))
		if len(rows) != 2 || rows[0]["name"] != "half" || rows[0]["fault"] != "its type is missing" ||
			rows[1]["name"] != "kept" || rows[1]["fault"] != "its rate is missing" {
			t.Errorf("ls says %v", rows)
		}
		code, out, _ := s.run("doctor", "--json")
		var found []string
		for _, f := range objects(t, out) {
			if f["limiter"] != nil {
				found = append(found,
					fmt.Sprint(f["code"], " ", f["limiter"].(map[string]any)["name"], " ", f["advice"]))
			}
		}
		if want := []string{
			"broken-config half rrl set half RATE",
			"broken-config kept rrl set kept RATE",
		}; code != 1 ||
			!slices.Equal(found, want) {
			t.Errorf("exit code %d, doctor says %q", code, found)
		}
		s.fails(1, "the key mine belongs to another program", "rm", "mine", "--yes")
		s.fails(1, "the key also belongs to another program", "rm", "also", "--yes")
		contains(t, s.ok("rm", "half", "--yes"), "half: removed")
	})
}

func TestShowCountsRecordsOfABrokenConfiguration(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		for _, c := range []struct {
			fields        []string
			live, expired float64
		}{
			{[]string{"ten", "60000", "0"}, 2, 1},
			{[]string{"10", "60000"}, 2, 1},
			{[]string{"10", "never", "0"}, 3, 0}, // without an interval, expired records are unknown
			{[]string{"10", "0", "0"}, 3, 0},
		} {
			s.must(s.rdb.FlushDB(t.Context()).Err())
			s.limiter("x", c.fields...)
			s.state(
				"x", "", "7", -100, rrltest.GoRecord("abc", 3), -200, rrltest.GoRecord("abd", 2), -90_000,
				rrltest.GoRecord("abe", 1),
			)
			contains(
				t, s.unusable("show", "x"), "none that can be used",
				"state       7 stored as free, 6 permits in 3 records\n",
			)
			if one := objects(t, s.unusable("show", "x", "--json"))[0]; one["live_records"] != c.live ||
				one["expired_records"] != c.expired {
				t.Errorf("with %q it says %v", c.fields, one)
			}
		}
		s.must(s.rdb.FlushDB(t.Context()).Err())
		s.limiter("x", "ten", "60000", "1")
		s.state("x", "one", "7", -100, rrltest.GoRecord("abc", 3))
		if text := s.unusable("show", "x"); !regexp.MustCompile(`(?m)^one +\? +1 .* \?$`).MatchString(text) ||
			!strings.Contains(text, "none that can be used") {
			t.Errorf("of a PER_CLIENT limiter it shows\n%s", text)
		}
		contains(
			t, s.unusable("show", "x", "--client", "one"), "client      one",
			"state       7 stored as free, 3 permits in 1 record\n",
		)
	})
}
