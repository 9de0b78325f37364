package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestPerClientLimiters(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("pc", "10", "3600000", "1")
		s.state("pc", "one", "7", -100, rrltest.GoRecord("abc", 3))
		s.state("pc", "two", "9", -100, rrltest.JavaRecord(rratelimiter.Redisson321, 1))
		text := s.ok("show", "pc")
		contains(t, text, "rate        10/h per client\nTTL         none\n", "one", "two")
		if !regexp.MustCompile(`(?m)^one +7 +1 .* yes$`).MatchString(text) {
			t.Errorf("it shows\n%s", text)
		}
		if all := objects(t, s.ok("show", "pc", "--client", "all", "--json")); len(all) != 2 ||
			all[0]["client"] != "one" ||
			all[1]["available"] != 9. {
			t.Errorf("it shows %v", all)
		}
		contains(t, s.ok("show", "pc", "--client", "one"), "client      one", "3 permits in 1 live record")
		row := objects(t, s.ok("ls", "--json"))
		if _, there := row[0]["available"]; there || len(row) != 1 || row[0]["type"] != "PER_CLIENT" {
			t.Errorf("without --client ls says %v", row)
		}
		contains(t, s.ok("ls"), "by client: rrl ls --client all\n")
		if all := objects(t, s.ok("ls", "--json", "--client", "all")); len(all) != 2 || all[0]["available"] != 7. ||
			all[1]["client"] != "two" {
			t.Errorf("of all ls says %v", all)
		}
		contains(t, s.ok("show", "--quoted", `"pc"`, "--client", `"\x6fne"`), "client      one")
		contains(t, s.ok("show", "--quoted", `"pc"`, "--client", "two"), "client      two")
		s.fails(1, `--client: "\"one" is not an id in double quotes`, "show", "--quoted", `"pc"`, "--client", `"one`)
		s.fails(1, "pc is a PER_CLIENT limiter: select a client", "release", "pc", "1")
		contains(t, s.ok("release", "pc", "2", "--client", "one"), "pc of one: 2 permits given back")
		contains(t, s.ok("reset", "pc", "--client", "all", "--yes"),
			"pc of one: reset: 1 permit in 1 record forgotten, all 10 free", "pc of two: reset")
		contains(t, s.ok("acquire", "pc", "4", "--client", "three"), "pc of three: 4 permits granted")
		s.fails(exitDenied, "not granted", "acquire", "pc", "7", "--client", "three", "--try")
		contains(t, s.ok("set", "pc", "20/h"), "free permits of 1 client adapted") // the two others have been reset
		if one := objects(t, s.ok("show", "pc", "--client", "three", "--json")); one[0]["available"] != 16. ||
			one[0]["consistent"] != true {
			t.Errorf("after a new rate it shows %v", one)
		}
		if n := s.rdb.Exists(t.Context(), "{pc}:value:one", "{pc}:value:two").Val(); n != 0 {
			t.Errorf("%d of the clients that were reset have keys", n)
		}
		s.limiter("all", "10", "3600000", "0")
		s.fails(1, "all is not a PER_CLIENT limiter", "show", "all", "--client", "one")
		contains(t, s.ok("rm", "pc", "--yes"), "pc: removed")
		s.limiter("unused", "10", "3600000", "1")
		contains(
			t, s.ok("ls", "--client", "all"),
			"unused  10/h  PER_CLIENT                         -    no client has used it lately\n",
		)
		if keys := s.rdb.Keys(t.Context(), "*pc*").Val(); len(keys) > 0 {
			t.Errorf("%q are left", keys)
		}
	})
}

// --match selects limiters by pattern: without --yes they are listed, and nothing changes.
func TestManyLimitersByPattern(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		for _, name := range []string{"api:a", "api:b", "other"} {
			s.limiter(name, "10", "60000", "0")
			s.state(name, "", "7", -100, rrltest.GoRecord("abc", 3))
		}
		s.limiter("api:pc", "10", "60000", "1")
		s.state("api:pc", "one", "6", -100, rrltest.GoRecord("abc", 4))
		used := func() (sum float64) {
			for _, row := range objects(t, s.ok("ls", "--json", "--client", "all")) {
				if n, there := row["used"]; there {
					sum += n.(float64)
				}
			}
			return sum
		}

		s.fails(1, "api:pc is a PER_CLIENT limiter: select a client", "reset", "--match", "api:*", "--yes")
		all := []string{"reset", "--match", "api:*", "--client", "all"}
		contains(
			t, s.ok(all...), "api:a: to be reset: 3 permits", "api:b: to be reset",
			"api:pc of one: to be reset: 4 permits",
			"Nothing was changed. --yes does it.\n",
		)
		if n := used(); n != 13 {
			t.Errorf("%v permits are used after a reset without --yes", n)
		}
		contains(t, s.ok(append(all, "--yes")...), "api:a: reset", "api:b: reset", "api:pc of one: reset")
		if n := used(); n != 3 {
			t.Errorf("%v permits are used after a reset of all but 3", n)
		}

		if got, want := s.ok("rm", "--match", "api:*"), `api:a (10/m)
api:b (10/m)
api:pc (10/m per client)
Nothing was changed. --yes does it.
`; got != want {
			t.Errorf("without --yes, rm prints\n%s\nwant\n%s", got, want)
		}
		if rows := objects(t, s.ok("rm", "--match", "api:*", "--json")); len(rows) != 3 || rows[0]["removed"] != false {
			t.Errorf("without --yes, rm prints %v", rows)
		}
		contains(t, s.ok("rm", "--match", "api:*", "--yes"), "api:a: removed", "api:b: removed", "api:pc: removed")
		if rows := objects(t, s.ok("ls", "--json")); len(rows) != 1 || rows[0]["name"] != "other" {
			t.Errorf("after the removal there are %v", rows)
		}

		s.fails(1, "no limiter matches api:*", "rm", "--match", "api:*", "--yes")
		s.fails(1, "--match is empty", "rm", "--match", "", "--yes")
		s.fails(1, "put the pattern in quotes", "reset", "--match", "a", "b")
	})
}

func TestLsListsLimitersAndNothingElse(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		if out := s.ok("ls"); out != "no limiters\n" {
			t.Errorf("of nothing it says %q", out)
		}
		s.limiter("b", "2000", "60000", "0")
		s.state("b", "", "500", -100, rrltest.GoRecord("abc", 1500))
		s.limiter("a", "10", "250", "0")
		s.limiter("c", "10", "60000", "0")
		s.state("c", "", "3", -100, rrltest.GoRecord("abc", 1))
		s.limiter("d\x00\xff", "5", "1000", "0")
		s.limiter("e", "ten", "1000", "0")
		s.must(s.rdb.HSet(t.Context(), "hash", "rate", "1", "type", "0", "colour", "red").Err())
		s.limiter("f", "10", "1000", "0", "size", "3", "colour", "red", "keepAliveTime", "0")
		s.must(s.rdb.Set(t.Context(), "text", "1", 0).Err())
		s.must(s.rdb.PExpire(t.Context(), "a", 90*time.Minute).Err())
		want := `NAME         RATE      TYPE     FREE  IN USE  RECORDS  TTL
a            10/250ms  OVERALL    10       0        0  1h30m
b            2000/m    OVERALL   500   1,500        1  -
c            10/m      OVERALL     9       1        1  -      does not add up: rrl show
"d\x00\xff"  5/s       OVERALL     5       0        0  -
e            ?                                                its rate is no whole number
f            10/s      OVERALL    10       0        0  -      also has fields of another program: colour, size
`
		if got := s.ok("ls"); got != want {
			t.Errorf("it lists\n%s\nwant\n%s", got, want)
		}
		rows := objects(t, s.ok("ls", "--json", "[a-d]*"))
		if len(rows) != 4 || rows[1]["used"] != 1500. || rows[1]["consistent"] != true ||
			rows[2]["consistent"] != false ||
			rows[0]["ttl_ms"].(float64) < 80*60_000 || rows[3]["name_base64"] != "ZAD/" ||
			rows[3]["name"] != `"d\x00\xff"` {
			t.Errorf("as JSON it lists %v", rows)
		}
		// names that Redis accepts
		for _, name := range []string{"", "\xff", "{", "a{b", "{x}", "\u202e", "*", "--", "-x"} {
			quoted := strconv.Quote(name)
			s.ok("set", "--quoted", quoted, "5/s")
			if one := objects(t, s.ok("show", "--quoted", quoted, "--json"))[0]; one["available"] != 5. {
				t.Errorf("%s is %v", quoted, one)
			}
			if text := s.ok("show", "--quoted", quoted); !strings.HasPrefix(text, name+"\n") &&
				!strings.HasPrefix(text, quoted+"\n") || strings.Contains(text, "\xff") ||
				strings.Contains(text, "\u202e") {
				t.Errorf("%s is shown as %q", quoted, text)
			}
		}
		contains(t, s.ok("show", "--quoted", `"d\x00\xff"`), `"d\x00\xff"`, "5/s, OVERALL")
		s.fails(1, "is not a name in double quotes", "show", "--quoted", "d")
	})
}

// With very many keys, ls uses only SCAN, a thousand at a time, and reads only limiters.
func TestLsOfManyKeysDoesNotBlockRedis(t *testing.T) {
	server := redistest.Real(t)
	s := newShop(t, server)
	const fill = `for i = ARGV[1], ARGV[2] do
		redis.call('SET', 'text:' .. i, i)
		redis.call('HSET', 'hash:' .. i, 'type', i)
		if i % 1000 == 0 then redis.call('HSET', 'limit:' .. i, 'rate', '5', 'interval', '1000', 'type', '0') end
	end`
	for first := 0; first < 55_000; first += 5000 {
		s.must(s.rdb.Eval(t.Context(), fill+" return 1", nil, first, first+4999).Err())
	}
	s.must(s.rdb.ConfigResetStat(t.Context()).Err())
	if rows := objects(t, s.ok("ls", "--json")); len(rows) != 55 {
		t.Errorf("%d limiters are found", len(rows))
	}
	calls := map[string]int{}
	for _, found := range regexp.MustCompile(`cmdstat_(\S+?):calls=(\d+)`).FindAllStringSubmatch(
		s.rdb.Info(t.Context(), "commandstats").Val(), -1) {
		calls[found[1]], _ = strconv.Atoi(found[2])
	}
	if calls["keys"] > 0 || calls["scan"] < 110 || calls["evalsha"] > 2*55 {
		t.Errorf("it called %v", calls)
	}
}

func TestSetKeepsWhatIsNotSaid(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		for _, step := range []struct {
			args []string
			want string
		}{
			{[]string{"x", "10/m"}, "x: 10/m, new\n"},
			{[]string{"x", "10/m"}, "x: 10/m, as before\n"},
			{[]string{"x", "20/m", "--keep-alive", "1h"}, "x: 10/m -> 20/m keep-alive 1h\n"},
			{[]string{"x", "30/m"}, "x: 20/m keep-alive 1h -> 30/m keep-alive 1h\n"},
			{[]string{"x", "30/m", "--per-client"}, "x: 30/m keep-alive 1h -> 30/m per client keep-alive 1h\n"},
			{[]string{"x", "40/m", "--keep-alive", "0"}, "x: 30/m per client keep-alive 1h -> 40/m per client\n"},
			{[]string{"x", "40/m", "--per-client=false"}, "x: 40/m per client -> 40/m\n"},
			{[]string{"x", "0"}, "x: 40/m -> 0/m\n"},
			{[]string{"x", "40/m"}, "x: 0/m -> 40/m\n"},
		} {
			if got := s.ok(append([]string{"set"}, step.args...)...); got != step.want {
				t.Errorf("set %q says %q, want %q", step.args, got, step.want)
			}
		}
		s.fails(1, "new has no interval yet: give one, such as 0/s", "set", "new", "0")
		s.limiter("broken", "ten", "60000", "0")
		if got := s.ok("set", "broken", "10/m"); got !=
			"broken: 10/m, in place of one that can't be used: its rate is no whole number\n" {
			t.Errorf("where there is a broken rate it says %q", got)
		}
		s.limiter("pc", "50", "abc", "1", "keepAliveTime", "3600000")
		if got := s.ok("set", "pc", "50/s"); !strings.HasPrefix(
			got, "pc: 50/s per client keep-alive 1h, in place of one that can't be used: ",
		) {
			t.Errorf("where the interval alone is broken it says %q", got)
		}
		s.ok("acquire", "x", "15")
		s.ok("set", "x", "50/m")
		if one := objects(t, s.ok("show", "x", "--json"))[0]; one["available"] != 35. || one["consistent"] != true {
			t.Errorf("grants were forgotten: %v", one)
		}
		changed := objects(t, s.ok("set", "x", "5/s", "--reset", "--json"))[0]
		if changed["change"] != "changed" || changed["old"].(map[string]any)["rate"] != "50/m" ||
			changed["reset"] != true {
			t.Errorf("as JSON it says %v", changed)
		}
		if one := objects(t, s.ok("show", "x", "--json"))[0]; one["available"] != 5. || one["live_records"] != 0. {
			t.Errorf("grants were kept: %v", one)
		}
		s.fails(1, "invalid rate", "set", "x", "5")
		s.fails(1, "needs the name", "set", "x")
	})
}

func TestReleaseRepairResetRm(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("x", "10", "3600000", "0")
		s.state("x", "", "4", -100, rrltest.GoRecord("abc", 3))
		const would = "x: to be repaired: free permits and those in records together were 3 less than the rate; free permits 4 -> 7, with 3 permits in 1 record\n"
		if got := s.ok("repair", "x"); got != would+"Nothing was changed. --yes does it.\n" {
			t.Errorf("a dry run says %q", got)
		}
		if got := s.ok("repair", "x", "--yes"); got != strings.Replace(would, "to be ", "", 1) {
			t.Errorf("a repair says %q", got)
		}
		if got := s.ok("repair", "x"); got != "x: nothing to do\n" {
			t.Errorf("a second one says %q", got)
		}
		if got := s.ok("release", "x", "2"); got != "x: 2 permits given back\n" {
			t.Errorf("a release says %q", got)
		}
		if did := objects(t, s.ok("reset", "x", "--json"))[0]; did["changed"] != true || did["dry_run"] != true ||
			did["permits"] != 1. {
			t.Errorf("a dry run of reset says %v", did)
		}
		if got := s.ok("reset", "x", "--yes"); got != "x: reset: 1 permit in 1 record forgotten, all 10 free\n" {
			t.Errorf("a reset says %q", got)
		}
		s.fails(1, "no terminal to ask for confirmation: use --yes", "rm", "x")
		if s.rdb.Exists(t.Context(), "x").Val() != 1 {
			t.Error("it is gone without a yes")
		}
		if did := objects(t, s.ok("rm", "x", "--yes", "--json"))[0]; did["removed"] != true {
			t.Errorf("rm says %v", did)
		}
		s.fails(1, "there is no limiter x", "rm", "x", "--yes")
		s.fails(1, "there is no limiter x", "repair", "x")
		s.fails(1, "is not a number of permits", "release", "x", "0")
	})
}

func TestRmLeavesAloneWhatIsNoLimiter(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.must(s.rdb.Set(t.Context(), "text", "mine", 0).Err())
		s.must(s.rdb.HSet(t.Context(), "hash", "type", "0", "colour", "red").Err())
		for _, name := range []string{"text", "hash"} {
			s.fails(1, "the key "+name+" belongs to another program", "rm", name, "--yes")
		}
		if n := s.rdb.Exists(t.Context(), "text", "hash").Val(); n != 2 {
			t.Errorf("%d of 2 keys are left", n)
		}
		s.limiter("half", "10", "1000")
		s.limiter("used", "10", "1000", "0")
		s.must(s.rdb.LPush(t.Context(), "{used}:permits", "mine").Err())
		s.state("rateless", "", "5")
		s.fails(1, "no terminal to ask for confirmation", "rm", "rateless")
		code, out, errs := s.run("rm", "a", "half", "b", "used", "rateless", "--yes")
		const removed = "half: removed\n" +
			"used: removed, but another program uses a key: \"{used}:permits\" is a list, not a zset\n" +
			"rateless: removed\n"
		if code != 1 || out != removed || errs != "rrl: there is no limiter a, nor b\n" {
			t.Errorf("exit code %d, output %q, errors %q", code, out, errs)
		}
		s.fails(1, "there is no limiter a", "rm", "a") // without a confirmation
	})
}

// A hash that has other fields beside those of a limiter may belong to another program: a pattern
// does not remove it, its name does.
func TestAHashWithOtherFieldsIsRemovedByItsNameOnly(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("car", "10", "1000", "0", "colour", "red", "keepAliveTime", "0")
		many := []string{"10", "1000", "0"}
		for i := range 1000 {
			many = append(many, strconv.Itoa(i), "")
		}
		s.limiter("many", many...)
		s.limiter("x", "10", "1000", "0", "keepAliveTime", "0")
		const kept = "car: kept, because it has fields of another program: colour; rrl rm car removes it\n" +
			"many: kept, because it has fields of another program: 0, 1, 10, 100, 101, 102, 103, 104, 105, 106 and 990 more; " +
			"rrl rm many removes it\n"
		if got := s.ok("rm", "--match", "*"); got != kept+"x (10/s)\nNothing was changed. --yes does it.\n" {
			t.Errorf("a dry run says %q", got)
		}
		if got := s.ok("rm", "--match", "*", "--yes"); got != kept+"x: removed\n" {
			t.Errorf("by a pattern it says %q", got)
		}
		if did := objects(t, s.ok("rm", "--match", "c*", "--yes", "--json"))[0]; did["removed"] != false ||
			!reflect.DeepEqual(did["other_fields"], []any{"colour"}) {
			t.Errorf("%v", did)
		}
		if row := objects(t, s.ok("ls", "car", "--json"))[0]; !reflect.DeepEqual(row["other_fields"], []any{"colour"}) {
			t.Errorf("%v", row)
		}
		if n := s.rdb.Exists(t.Context(), "car", "many", "x").Val(); n != 2 {
			t.Errorf("%d of the keys are left", n)
		}
		if got := s.ok("rm", "car", "many", "--yes"); got != "car: removed\nmany: removed\n" {
			t.Errorf("by its name it says %q", got)
		}
	})
}

// Commands on many limiters search all keys once for the limiters, and once for their clients.
func TestSearchesForManyLimiters(t *testing.T) {
	s := newShop(t, redistest.Shared(t))
	for _, n := range []int{1, 10, 100} {
		var limits strings.Builder
		for i := range n {
			fmt.Fprintf(&limits, "x%d: {rate: 20/s, per-client: true}\n", i)
		}
		file := filepath.Join(t.TempDir(), "limits.yaml")
		s.must(os.WriteFile(file, []byte("limits:\n  "+strings.ReplaceAll(limits.String(), "\n", "\n  ")), 0o600))
		for _, c := range []struct {
			searches int
			args     []string
		}{
			{1, []string{"ls"}},
			{2, []string{"ls", "--client", "all"}},
			{2, []string{"repair", "--match", "x*", "--client", "all", "--yes"}},
			{2, []string{"reset", "--match", "x*", "--client", "all", "--yes"}},
			{1, []string{"apply", "-f", file}},
			{2, []string{"rm", "--match", "x*"}},
			{2, []string{"rm", "--match", "x*", "--yes"}},
		} {
			s.must(s.rdb.FlushDB(t.Context()).Err())
			for i := range n {
				name := fmt.Sprint("x", i)
				s.limiter(name, "10", "3600000", "1")
				s.state(name, "a", "4", -100, rrltest.GoRecord("abc", 3))
			}
			searches := s.s.Monitor(func(c redistest.Command) bool {
				return c.Name() == "SCAN" && c.Args[1] == "0"
			})
			s.ok(c.args...)
			if got := len(searches.Stop()); got != c.searches {
				t.Errorf("%d limiters: %v searches all keys %d times, want %d", n, c.args, got, c.searches)
			}
			removes := c.args[0] == "rm" && c.args[len(c.args)-1] == "--yes"
			if left := s.rdb.DBSize(t.Context()).Val(); removes && left != 0 {
				t.Errorf("%d limiters: %v leaves %d keys", n, c.args, left)
			}
		}
	}
}

// Each command that changes or removes keys does not change those of another Redis type, and names
// them.
func TestKeysOfAnotherProgramStayAndAreNamed(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		begin := func(kind, client, suffix string) (key string) {
			t.Helper()
			s.must(s.rdb.FlushDB(t.Context()).Err())
			s.limiter("x", "10", "3600000", kind)
			s.state("x", client, "4", -100, rrltest.GoRecord("abc", 3))
			key = "{x}:" + suffix
			s.must(s.rdb.Del(t.Context(), key).Err())
			if strings.HasPrefix(suffix, "value") {
				s.must(s.rdb.RPush(t.Context(), key, "mine").Err())
			} else {
				s.must(s.rdb.Set(t.Context(), key, "mine", 0).Err())
			}
			return key
		}
		for _, suffix := range []string{"value", "permits"} {
			named := fmt.Sprintf(`"{x}:%s" is a `, suffix)
			key := begin("0", "", suffix)
			if row := objects(t, s.ok("ls", "--json"))[0]; row["rate"] != "10/h" ||
				!strings.Contains(fmt.Sprint(row["fault"]), "WRONGTYPE") {
				t.Errorf("ls: %v", row)
			}
			for _, args := range [][]string{
				{"repair", "x", "--yes"},
				{"reset", "x", "--yes"},
				{"repair", "x"},
				{"reset", "x"},
			} {
				s.fails(1, "x: nothing was changed: another program uses a key: "+named, args...)
			}
			if n := s.rdb.DBSize(t.Context()).Val(); n != 3 {
				t.Errorf("%d keys are left of 3", n)
			}
			data := s.snapshotOf("whole")
			for _, args := range [][]string{
				{"--as", "x"},
				{"--as", "x", "--replace"},
				{"--as", "x", "--replace", "--dry-run"},
			} {
				code, out, errs := s.with(data, append([]string{"restore"}, args...)...)
				if code != 1 || out != "" || !strings.Contains(errs, "wrong type of key") ||
					!strings.Contains(errs, key) ||
					strings.Count(errs, "\n") != 1 {
					t.Errorf("restore %q: exit code %d, output %q, errors %q", args, code, out, errs)
				}
			}
			if did := objects(t, s.ok("rm", "x", "--yes", "--json"))[0]; did["removed"] != true ||
				fmt.Sprint(did["left"]) != "["+key+"]" {
				t.Errorf("rm says %v", did)
			}
			if all := s.rdb.Keys(t.Context(), "*x*").Val(); len(all) != 1 || all[0] != key {
				t.Errorf("%q are left", all)
			}
			s.fails(1, "there is no limiter x: another program uses a key: "+named, "rm", "x", "--yes")

			key = begin("1", "one", suffix+":one")
			named = fmt.Sprintf(`"{x}:%s:one" is a `, suffix)
			s.state("x", "two", "4", -100, rrltest.GoRecord("abc", 3))
			code, out, errs := s.run("reset", "x", "--client", "all", "--yes")
			if code != 1 || !strings.HasPrefix(out, "x of two: reset") || !strings.Contains(errs, named) {
				t.Errorf("a reset of two clients: exit code %d, output %q, errors %q", code, out, errs)
			}
			contains(t, s.ok("gc", "--yes"), "x of one: kept, because another program uses a key: "+named,
				"nothing to remove")
			if did := objects(t, s.ok("gc", "--json"))[0]; did["removed"] != false ||
				fmt.Sprint(did["left"]) != "["+key+"]" {
				t.Errorf("gc says %v", did)
			}
			contains(t, s.ok("rm", "x", "--yes"), "x: removed, but another program uses a key: "+named)
			if all := s.rdb.Keys(t.Context(), "*x*").Val(); len(all) != 1 || all[0] != key {
				t.Errorf("%q are left", all)
			}
		}
	})
}

// One record that no limiter wrote: a repair would leave nothing free until it expires.
func TestRepairRefusesWhatBlocksALimiter(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		for _, c := range []struct {
			at   int // ms from now
			rate string
			want string // part of the refusal; "": there is none
		}{
			{
				3_556_000, "60000",
				"2 live records hold 665,670,573 permits at a rate of 100/m: the limiter would have no free permit for 1h",
			},
			{
				-1_800_000, "7200000",
				"2 live records hold 665,670,573 permits at a rate of 100/2h: the limiter would have no free permit for 1h30m",
			},
		} {
			s.must(s.rdb.FlushDB(t.Context()).Err())
			s.limiter("x", "100", c.rate, "0")
			s.state("x", "", "97", c.at, rrltest.GoRecord("abc", 665_670_570), -10, rrltest.GoRecord("xyz", 3))
			s.fails(
				1,
				"x: not repaired: "+c.want+
					"; rrl reset --yes removes the records; rrl repair --force --yes repairs nevertheless",
				"repair", "x", "--yes",
			)
			contains(t, s.ok("repair", "x"), "x: not to be repaired: "+c.want, "--force")
			one := objects(t, s.ok("repair", "x", "--json"))[0]
			if one["changed"] != true || one["dry_run"] != true || one["refused"] != c.want ||
				one["blocked_ms"].(float64) < 3_590_000 {
				t.Errorf("as JSON it says %v", one)
			}
			if free := s.rdb.Get(t.Context(), "{x}:value").Val(); free != "97" {
				t.Errorf("%s are free", free)
			}
			_, out, _ := s.run("doctor", "x")
			contains(t, out, "permits-gained", "-> do not repair it: "+c.want, "rrl show x", "rrl reset x")
			if strings.Contains(out, "rrl repair x") {
				t.Errorf("doctor says\n%s", out)
			}
			if strings.Contains(s.ok("show", "x"), "rrl repair") {
				t.Error("show advises a repair")
			}
			contains(
				t, s.ok("repair", "x", "--yes", "--force"), "x: repaired: ", "free permits 97 -> -665,670,473",
				"; no permit is free then for 1h",
			)
			if free := s.rdb.Get(t.Context(), "{x}:value").Val(); free != "-665670473" {
				t.Errorf("%s are free", free)
			}
		}
	})
}

// Records that have expired block nothing, whatever they hold: the rate was edited by hand since.
func TestRepairJudgesByWhatIsLive(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		for _, c := range []struct {
			permits       uint32 // in a live record, beside 90 that have expired
			refused, told string
		}{
			{0, "", "free permits 10 -> 1, with 90 permits in 1 record, of which 90 have expired"},
			{
				1,
				"",
				"free permits 10 -> 0, with 91 permits in 2 records, of which 90 have expired; no permit is free then for ",
			},
			{3, "1 live record holds 3 permits at a rate of 1/m: the limiter would have no free permit for ", ""},
		} {
			s.must(s.rdb.FlushDB(t.Context()).Err())
			s.limiter("x", "1", "60000", "0")
			s.state("x", "", "10", -70_000, rrltest.GoRecord("abc", 90))
			if c.permits > 0 {
				s.state("x", "", "10", -5, rrltest.GoRecord("xyz", c.permits))
			}
			_, out, _ := s.run("doctor", "x")
			if c.refused != "" {
				contains(t, out, "permits-gained", "-> do not repair it: "+c.refused)
				s.fails(1, "x: not repaired: "+c.refused, "repair", "x", "--yes")
				continue
			}
			contains(t, out, "permits-gained", "-> if no Java service calls release: rrl repair x --yes")
			if strings.Contains(out, "for -") {
				t.Errorf("doctor says\n%s", out)
			}
			contains(t, s.ok("repair", "x"), "x: to be repaired: ", c.told)
			contains(t, s.ok("repair", "x", "--yes"), "x: repaired: ", c.told)
			s.ok("doctor", "x")
			one := objects(t, s.ok("show", "x", "--json"))[0]
			if one["available"] != float64(1-int(c.permits)) || one["consistent"] != true {
				t.Errorf("after the repair it shows %v", one)
			}
		}
	})
}

// WithGranularity and WithLease date records up to an eighth of the interval ahead: until they
// expire, more than an interval can pass. They are grants like any other.
func TestRepairTakesRecordsDatedAheadForGrants(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("x", "10", "3600000", "0")
		s.state("x", "", "", 300_000, rrltest.GoRecord("abc", 10))
		_, out, _ := s.run("doctor", "x")
		contains(t, out, "value-missing", "-> rrl repair x --yes; no permit is free then for 1h5m")
		s.ok("repair", "x", "--yes")
		if free := s.rdb.Get(t.Context(), "{x}:value").Val(); free != "0" {
			t.Errorf("%q are free", free)
		}
	})
}

// A repair that blocks for less than an interval is allowed; doctor prints for how long.
func TestRepairTellsOfAShortBlock(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("x", "10", "14400000", "0")
		s.state("x", "", "7", -7_200_000, rrltest.GoRecord("abc", 6), -600_000, rrltest.GoRecord("xyz", 9))
		_, out, _ := s.run("doctor", "x")
		contains(t, out, "-> if no Java service calls release: rrl repair x --yes; no permit is free then for 2h")
		contains(t, s.ok("repair", "x"), "free permits 7 -> -5", "no permit is free then for 2h", "--yes does it")
		s.ok("repair", "x", "--yes")
		if free := s.rdb.Get(t.Context(), "{x}:value").Val(); free != "-5" {
			t.Errorf("%s are free", free)
		}
	})
}

// Characters that a terminal may interpret, or does not show, are escaped: in names, and in all
// other data of Redis.
func TestJSONHoldsNothingThatATerminalInterprets(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		const odd = "a\u009b31m\u202eb\u2066\u200f\u00ad\U000e0001\x7f\x1b"
		s.limiter(odd, "10", "3600000", "1", odd, odd)
		s.state(odd, odd, odd, -100, "x")
		data := s.ok("snapshot", odd)
		quoted := strconv.Quote(odd)
		for _, args := range [][]string{
			{"ls", "--client", "all"}, {"show", "--quoted", quoted, "--client", "all"}, {"doctor"}, {"gc"},
			{"reset", "--quoted", quoted, "--client", "all"}, {"snapshot", "--quoted", quoted},
			{"restore", "--replace"},
			{"apply", "-f", "-"}, {"rm", "--quoted", quoted, "--yes"},
		} {
			input := data
			if args[0] == "apply" {
				input = "limits: {" + quoted + ": 5/h}"
			}
			code, out, errs := s.with(input, append(args, "--json")...)
			if errs != "" || code != 0 && args[0] != "doctor" {
				t.Errorf("%q: exit code %d, errors %q", args, code, errs)
			}
			if at := strings.IndexFunc(out, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }); at >= 0 {
				t.Errorf("%q writes %q", args, out)
			}
			if all := objects(t, out); args[0] == "ls" &&
				(len(all) != 1 || all[0]["name"] != odd || all[0]["client"] != odd) {
				t.Errorf("read again it is %q", all)
			}
		}
		for _, args := range [][]string{{"ls"}, {"doctor"}} {
			if _, out, errs := s.run(args...); strings.ContainsFunc(
				out+errs, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' },
			) {
				t.Errorf("%q writes %q", args, out+errs)
			}
		}
	})
}

func TestGcRemovesWhatClientsLeft(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("pc", "10", "1000", "1")
		s.state("pc", "live", "9", -100, rrltest.JavaRecord(rratelimiter.Redisson321, 1))
		s.state("pc", "recent", "9", -60_000, rrltest.JavaRecord(rratelimiter.Redisson321, 1))
		s.state("pc", "gone", "9", -7_200_000, rrltest.JavaRecord(rratelimiter.Redisson321, 1))
		s.limiter("broken", "10", "0", "1")
		// may count for a day
		s.state("broken", "gone", "9", -7_200_000, rrltest.JavaRecord(rratelimiter.Redisson321, 1))
		s.state("nothing", "empty", "10")
		// the interval is unknown
		s.state("nothing", "recent", "0", -7_200_000, rrltest.JavaRecord(rratelimiter.Redisson321, 10))
		s.state("nothing", "older", "0", -32*24*3_600_000, rrltest.JavaRecord(rratelimiter.Redisson321, 10))
		// all clients share it
		s.state("price:value:eur", "", "7", -100, rrltest.JavaRecord(rratelimiter.Redisson321, 3))
		s.state("pc", "leaving", "10")
		s.must(s.rdb.PExpire(t.Context(), "{pc}:value:leaving", time.Hour).Err())
		before := s.rdb.DBSize(t.Context()).Val()
		want := "nothing of older, without a limiter\nnothing of empty, without a limiter\npc of gone\nThe state of 3 clients can go. Nothing was changed. --yes does it.\n"
		if got := s.ok("gc"); got != want || s.rdb.DBSize(t.Context()).Val() != before {
			t.Errorf("a dry run says %q", got)
		}
		if all := objects(t, s.ok("gc", "--json", "--idle", "10s")); len(all) != 4 || all[3]["client"] != "recent" ||
			all[3]["removed"] != false {
			t.Errorf("with less patience it says %v", all)
		}
		contains(t, s.ok("gc", "--yes"), "Removed the state of 3 clients.")
		if n := s.rdb.DBSize(t.Context()).Val(); n != before-5 ||
			s.rdb.Exists(t.Context(), "{pc}:permits:live", "{pc}:value:recent").Val() != 2 {
			t.Errorf("%d keys are left of %d", n, before)
		}
		if got := s.ok("gc"); got != "nothing to remove\n" {
			t.Errorf("then it says %q", got)
		}
	})
}

func TestSnapshotAndRestore(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("a", "10", "3600000", "0")
		s.state("a", "", "7", -100, rrltest.GoRecord("abc", 3))
		s.limiter("b", "5", "3600000", "1")
		s.state("b", "one", "4", -100, rrltest.GoRecord("abc", 1))
		data := s.ok("snapshot", "a", "b", "--note", "for a test")
		contains(t, s.ok("snapshot", "a", "--text"), `limiter "a"`, "3 by Go")
		if one := objects(t, s.ok("snapshot", "b", "--json"))[0]; one["name"] != "b" ||
			len(one["states"].([]any)) != 2 {
			t.Errorf("as JSON it is %v", one)
		}
		restored := func(code int, part string, args ...string) {
			t.Helper()
			got, out, errs := s.with(data, append([]string{"restore"}, args...)...)
			if got != code || !strings.Contains(out+errs, part) {
				t.Errorf("restore %q: exit code %d, output %q, errors %q", args, got, out, errs)
			}
		}
		restored(
			1, "rrl: these exist, and were not restored: a, b; --replace replaces them, --as restores one under another name\n",
		)
		restored(1, "rrl: these exist, and were not restored: a, b; --replace", "--dry-run")
		restored(1, "--as: the file has 2 limiters, and must have one", "--as", "c")
		restored(0, "a: to be restored", "--dry-run", "--replace")
		s.ok("acquire", "a", "7")
		restored(0, "b: restored, taken 2", "--replace")
		if one := objects(t, s.ok("show", "a", "--json"))[0]; one["available"] != 7. || one["consistent"] != true {
			t.Errorf("what is restored is %v", one)
		}
		contains(t, s.ok("show", "b"), "one")
		data = s.ok("snapshot", "a")
		restored(0, `{"name":"c","taken_at":"`, "--as", "c", "--now", "--json")
		data = data[:len(data)-1]
		restored(1, "decode snapshot 1: snapshot: invalid")
		data = ""
		restored(1, "the file is empty")
		s.fails(1, "there is no limiter", "snapshot", "nothing")
	})
}

func TestApplySetsTheRatesOfAFile(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		const file = `
limits:
  orders: 100/s
  search: &one
    rate: 50/s
    per-client: true
    keep-alive: 1h
  more: *one
  "a b": {rate: 5/h, reset: true}
`
		s.limiter("orders", "90", "1000", "0")
		s.limiter("a b", "5", "3600000", "0")
		apply := func(code int, want string, args ...string) {
			t.Helper()
			got, out, errs := s.with(file, append([]string{"apply", "-f", "-"}, args...)...)
			if got != code || out != want || errs != "" {
				t.Errorf("apply %q: exit code %d, errors %q, output\n%s\nwant\n%s", args, got, errs, out, want)
			}
		}
		want := "~ orders: 90/s -> 100/s\n+ search: 50/s per client keep-alive 1h, new\n+ more: 50/s per client keep-alive 1h, new\n" +
			"= \"a b\": 5/h, as before\n"
		apply(exitDiffers, want+"3 of 4 limiters would be changed\n", "--diff")
		if s.rdb.Exists(t.Context(), "search").Val() != 0 {
			t.Error("--diff has changed something")
		}
		apply(0, want)
		apply(
			0,
			strings.NewReplacer("90/s -> 100/s",
				"100/s, as before", ", new", ", as before", "~", "=", "+", "=").Replace(want)+
				"0 of 4 limiters would be changed\n",
			"--diff",
		)
		for text, part := range map[string]string{
			"limits: {a: 5/s, b: -1/s}":              "line 1: b: rratelimiter: invalid rate",
			"limits: {a: {rate: 5/s, reset: maybe}}": "a: line 1: cannot construct !!str `maybe` into bool",
			"":                                       "the standard input: it is empty",
		} {
			code, out, errs := s.with(text, "apply", "-f", "-")
			if code != 1 || out != "" || !strings.Contains(errs, part) || strings.Count(errs, "\n") != 1 {
				t.Errorf("of %q it says %q %q, want %q in one line", text, out, errs, part)
			}
		}
		if s.rdb.Exists(t.Context(), "a").Val() != 0 {
			t.Error("a file with a fault has set something")
		}
		s.fails(1, "rrl apply needs -f FILE", "apply")
		if code, out, errs := s.with("limits: {b: {rate: 5/s per client, per-client: true}}",
			"apply", "-f", "-"); code != 0 ||
			out != "+ b: 5/s per client, new\n" {
			t.Errorf("said twice alike: exit code %d, output %q, errors %q", code, out, errs)
		}
		s.fails(1, "--per-client=false, but", "set", "b", "5/s per client", "--per-client=false")
		s.fails(1, "--keep-alive, but", "set", "b", "5/s keep-alive 1h", "--keep-alive", "2h")
	})
}

// On a terminal there is colour that only repeats the text, a search shows its progress, and
// operations that can't be undone ask for confirmation.
func TestOnATerminal(t *testing.T) {
	s := onTerminal(t)
	s.state("x", "", "0")
	code, out, errs := s.run("ls")
	if plain := ansi.Strip(out); code != 0 || plain == out || !strings.Contains(plain, "x     10/h  OVERALL    10") ||
		!strings.Contains(errs, "\r\x1b[K2 of 2 keys, 1 found\r\x1b[K") {
		t.Errorf("exit code %d, output %q, errors %q", code, out, errs)
	}
	t.Setenv("NO_COLOR", "1")
	if _, out, _ := s.run("ls"); strings.Contains(out, "\x1b") {
		t.Errorf("with NO_COLOR it says %q", out)
	}
	for _, answer := range []string{"", "n\n", "what\n"} {
		if code, _, errs := s.with(answer, "rm", "x"); code != 1 ||
			!strings.HasPrefix(errs, "Remove x (10/h)? [y/N] ") ||
			!strings.Contains(errs, "x was not removed: not confirmed") {
			t.Errorf("answered %q: exit code %d, %q", answer, code, errs)
		}
	}
	for _, flag := range []string{"--text", "--json"} {
		s.fails(
			1, "--output is for a snapshot that can be restored", "snapshot", "x", flag, "--output",
			filepath.Join(t.TempDir(), "x"),
		)
	}
	if code, out, errs := s.run("snapshot", "x"); code != 1 || out != "" ||
		!strings.Contains(errs, "a snapshot is not text") {
		t.Errorf("exit code %d, output %q, errors %q", code, out, errs)
	}
	if code, _, errs := s.run("restore"); code != 1 || !strings.Contains(errs, "the standard input is a terminal") {
		t.Errorf("exit code %d, errors %q", code, errs)
	}
	if code, out, _ := s.with("Yes\n", "rm", "x"); code != 0 || out != "x: removed\n" ||
		s.rdb.DBSize(t.Context()).Val() != 0 {
		t.Errorf("exit code %d, output %q", code, out)
	}
}

// A shell's loop ends by the signal, and no message is needed.
func TestASignalEndsWithoutWords(t *testing.T) {
	s := onTerminal(t)
	ctx, end := context.WithCancelCause(t.Context())
	question, never := io.Pipe() // an input without an answer
	defer never.Close()
	var errs tape
	code := make(chan int)
	go func() { code <- run(ctx, []string{"rm", "x", "--redis", s.s.URL()}, question, io.Discard, &errs) }()
	for !strings.HasSuffix(errs.String(), "[y/N] ") {
		time.Sleep(time.Millisecond)
	}
	end(interrupted{syscall.SIGINT})
	if got := <-code; got != ofSignal+2 || strings.Contains(errs.String(), "rrl:") {
		t.Errorf("while it asks: exit code %d, errors %q", got, errs.String())
	}
	if got, out, errs := rrl(ctx, "ls", "--redis", s.s.URL()); got != ofSignal+2 || out != "" || errs != "" {
		t.Errorf("while it looks: exit code %d, output %q, errors %q", got, out, errs)
	}
	if s.rdb.Exists(t.Context(), "x").Val() != 1 {
		t.Error("it is gone without a yes")
	}
}

func TestCompletionOffersNames(t *testing.T) {
	defer func(short time.Duration) { glimpse = short }(glimpse)
	glimpse = time.Minute
	s := newShop(t, redistest.Embedded(t))
	s.limiter("orders", "10", "1000", "0")
	s.limiter("other*", "10", "1000", "0")
	s.limiter("search", "10", "1000", "0")
	t.Setenv("RRL_REDIS", s.s.URL())
	s.limiter("new\nline", "10", "1000", "0")
	s.limiter("pc", "10", "1000", "1")
	s.state("pc", "one", "10")
	s.state("pc", "two", "10")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"show", "or"}, "orders\n"},
		{[]string{"show", "other*"}, "other*\n"},
		{[]string{"show", "new"}, ""}, // the name contains a line break
		{[]string{"show", "orders", ""}, ""},
		{[]string{"rm", "orders", "o"}, "other*\n"},
		{[]string{"ls", "s"}, "search\n"},
		{[]string{"gc", ""}, ""},
		{[]string{"show", "pc", "--client", ""}, "one\ntwo\nall\n"},
		{[]string{"show", "pc", "--client", "t"}, "two\n"},
		{[]string{"ls", "--client", ""}, "all\n"},
	} {
		if _, out, _ := rrl(t.Context(), append([]string{"__complete"}, c.args...)...); !strings.HasPrefix(
			out, c.want+":4\n",
		) {
			t.Errorf("of %q it offers %q, want %q", c.args, out, c.want)
		}
	}
	if code, out, _ := rrl(t.Context(), "completion", "bash"); code != 0 ||
		!strings.Contains(out, "__rrl_") && !strings.Contains(out, "rrl") {
		t.Errorf("the script for bash: exit code %d, %d bytes", code, len(out))
	}
}

// full is an output that fails, like a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestOutputThatGetsLostIsAnError(t *testing.T) {
	s := newShop(t, redistest.Embedded(t))
	s.limiter("x", "10", "3600000", "0")
	for _, args := range [][]string{
		{"ls"}, {"ls", "--json"}, {"show", "x"}, {"doctor", "x"}, {"set", "x", "5/h"}, {"snapshot", "x", "--text"},
		{"snapshot", "x"},
	} {
		var errs bytes.Buffer
		all := append([]string{args[0], "--redis", s.s.URL()}, args[1:]...)
		if code := run(t.Context(), all, strings.NewReader(""), full{}, &errs); code != 1 ||
			errs.String() != "rrl: no space left\n" {
			t.Errorf("rrl %q: exit code %d, errors %q", args, code, errs.String())
		}
	}
	s.fails(1, "rrl ls takes one pattern, in quotes", "ls", "a", "b")
}

func TestEveryCommandOnALiveRedisHasJSONAndHelp(t *testing.T) {
	for _, cmd := range newRoot().Commands() {
		switch cmd.Name() {
		case "demo", "simulate", "completion", "help", "version", "check-rules":
			continue
		}
		for _, flag := range []string{"json", "redis", "ca", "cert", "key", "insecure", "quoted", "timeout"} {
			if cmd.Flags().Lookup(flag) == nil {
				t.Errorf("rrl %s has no --%s", cmd.Name(), flag)
			}
		}
		if cmd.Short == "" || len(cmd.Long) < 100 || cmd.Example == "" || !strings.Contains(cmd.Long, "RRL_PASSWORD") {
			t.Errorf("rrl %s has too little help", cmd.Name())
		}
	}
}

func TestRestoreGoesOnBehindALimiterThatIsThere(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		client := rrltest.Client(s.Client())
		for _, name := range []string{"a", "b"} {
			if err := client.RateLimiter(name).SetRate(t.Context(), rratelimiter.PerSecond(5)); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(t.TempDir(), "limits")
		if code, _, errs := rrl(t.Context(), "snapshot", "a", "b", "--output", file, "--redis", s.URL()); code != 0 {
			t.Fatal(errs)
		}
		if _, err := client.RateLimiter("b").Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		code, out, errs := rrl(t.Context(), "restore", "--file", file, "--redis", s.URL())
		if code != 1 || !strings.Contains(out, "b: restored") || !strings.Contains(errs, "--replace") {
			t.Errorf("%d %s\n%s: b is to be restored though a is there", code, out, errs)
		}
		if err := os.WriteFile(file, []byte(`{"name":"a"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := rrl(t.Context(), "restore", "--file", file, "--redis", s.URL()); code != 1 ||
			!strings.Contains(errs, "JSON") {
			t.Errorf("%d %s: it must say that this is JSON", code, errs)
		}
		if code, _, errs := rrl(t.Context(), "set", "", "5/s", "--redis", s.URL()); code != 1 ||
			!strings.Contains(errs, "empty") {
			t.Errorf("%d %s: an empty name must be meant", code, errs)
		}
	})
}

func TestWatchTellsThatRedisDoesNotAnswer(t *testing.T) {
	s := redistest.Real(t)
	if err := rrltest.Client(s.Client()).RateLimiter("orders").SetRate(t.Context(),
		rratelimiter.PerSecond(5)); err != nil {
		t.Fatal(err)
	}
	defer s.Resume()
	code, out, errs := rrlBeside(t.Context(), func(ctx context.Context, out *tape) {
		out.await(ctx, "5 free")
		s.Pause()
		out.await(ctx, "no answer within 2s")
	}, "watch", "orders", "--redis", s.URL(), "--timeout", "2s")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(lines) < 2 || !strings.Contains(lines[0], "5 free") ||
		!strings.Contains(lines[len(lines)-1], "no answer within 2s") {
		t.Errorf("%d %s\n%s", code, errs, out)
	}
}

// hung returns a server with limiters that accepts connections and does not reply. Lines about
// waiting come soon.
func hung(t *testing.T) shop {
	before := render.Soon
	render.Soon = 100 * time.Millisecond
	t.Cleanup(func() { render.Soon = before })
	s := newShop(t, redistest.Real(t))
	s.limiter("x", "10", "3600000", "0")
	s.s.Pause()
	t.Cleanup(s.s.Resume)
	return s
}

// Each command says what it waits for, and ends after --timeout, whichever of its calls gets no
// reply.
func TestCommandsEndIfRedisHangs(t *testing.T) {
	s := hung(t)
	for _, args := range [][]string{
		{"doctor", "x"}, {"show", "x"}, {"ls"}, {"set", "x", "5/h"}, {"repair", "x"}, {"snapshot", "x"}, {"gc"},
		{"serve"},
	} {
		began := time.Now()
		code, out, errs := s.run(append(args, "--timeout", "400ms")...)
		const text = "rrl: waiting for redis://%[1]s, at most 400ms\nrrl: redis://%[1]s: no answer within 400ms; is Redis there? --redis gives another address\n"
		want := fmt.Sprintf(text, s.s.Addr)
		if code != 1 || out != "" || errs != want || time.Since(began) > 14*time.Second { // it was 15 s
			t.Errorf(
				"rrl %q: exit code %d after %v, output %q, errors\n%s\nwant\n%s", args, code, time.Since(began), out,
				errs, want,
			)
		}
	}
}

// A server that hangs after the first call is noticed, too: in the limiter's own calls, and in
// those of a search.
func TestCommandsEndIfRedisHangsLater(t *testing.T) {
	s := hung(t)
	s.s.Resume()
	server, err := connect.Open(t.Context(), connect.Flags{Address: s.s.URL(), Timeout: 300 * time.Millisecond})
	s.must(err)
	defer server.Close()
	s.s.Pause()
	_, err = server.Limiter("x", "").Config(t.Context())
	if !connect.Unanswered(err) ||
		!strings.Contains(server.Explain(err).Error(), "no answer within 300ms; is Redis there?") {
		t.Errorf("of a limiter's call: %v", err)
	}
	_, err = survey.Limiters(t.Context(), server.Redis, "*", nil)
	if !connect.Unanswered(err) ||
		!strings.Contains(server.Explain(err).Error(), ": no answer within 300ms; is Redis there?") {
		t.Errorf("of a search: %v", err)
	}
	_, err = survey.AreLimiters(t.Context(), server.Redis, "x", "y")
	if !connect.Unanswered(err) ||
		!strings.Contains(server.Explain(err).Error(), ": no answer within 300ms; is Redis there?") {
		t.Errorf("of a pipeline: %v", err)
	}
}

func TestTheTimeoutIsThreeSeconds(t *testing.T) {
	s := newShop(t, redistest.Embedded(t))
	out, err := s.program("ls", "--help").CombinedOutput()
	if err != nil ||
		!strings.Contains(
			strings.Join(strings.Fields(string(out)), " "),
			"--timeout duration maximum wait for each reply of Redis (default 3s)",
		) {
		t.Errorf("%v\n%s", err, out)
	}
	s.fails(1, "--timeout must be positive", "ls", "--timeout", "-1s")
}
