package redistest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestMonitorTellsScriptsFromClients(t *testing.T) {
	s := Real(t)
	client := s.Client(func(o *redis.Options) { o.DB = 5 })
	if err := client.Set(ctx, "before", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	recording := Monitor(t, s.Addr)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	script := `return redis.call("ZAdd", KEYS[1], ARGV[1], ARGV[2])`
	if err := client.Eval(ctx, script, []string{"set {a} ] \""}, 1234567, every).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.ZAdd(ctx, "", redis.Z{Score: 1, Member: ""}).Err(); err != nil {
		t.Fatal(err)
	}
	commands := recording.Stop()
	after := time.Now()
	if err := client.Set(ctx, "after", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}

	want := []struct {
		name string
		lua  bool
		args []string
	}{
		{"EVAL", false, []string{"eval", script, "1", "set {a} ] \"", "1234567", string(every)}},
		{"ZADD", true, []string{"ZAdd", "set {a} ] \"", "1234567", string(every)}},
		{"ZADD", false, []string{"zadd", "", "1", ""}},
	}
	if len(commands) != len(want) {
		t.Fatalf("recorded %d commands, want %d: %+v", len(commands), len(want), commands)
	}
	// Versions differ in whether a script or its commands come first.
	slices.SortStableFunc(commands, func(a, b Command) int { return strings.Compare(a.Name(), b.Name()) })
	for i, c := range commands {
		if w := want[i]; c.Name() != w.name || c.Lua != w.lua || !slices.Equal(c.Args, w.args) || c.DB != 5 {
			t.Errorf("command %d: got %+v, want %+v in database 5", i, c, w)
		}
		if c.Time.Before(before.Add(-time.Second)) || c.Time.After(after.Add(time.Second)) {
			t.Errorf("command %d has time %v, ran between %v and %v", i, c.Time, before, after)
		}
		if (c.Source == "lua") != c.Lua || !c.Lua && !strings.HasPrefix(c.Source, "127.0.0.1:") {
			t.Errorf("command %d has source %q", i, c.Source)
		}
	}
	if again := recording.Stop(); len(again) != len(want) {
		t.Errorf("a second Stop returns %d commands", len(again))
	}
}

// Nothing is lost, however fast the clients are: each command with a reply before Stop is recorded,
// once, and each client's commands are in their order.
func TestMonitorLosesNothing(t *testing.T) {
	const clients, pipelines, each = 4, 20, 250
	s := Real(t)
	recording := Monitor(
		t, s.Addr, func(c Command) bool {
			return c.Name() == "RPUSH"
		}, func(c Command) bool { return c.Args[1] != "other" },
	)
	var group sync.WaitGroup
	padding := strings.Repeat("\x00", 500)
	for n := range clients {
		client := s.Client()
		group.Go(func() {
			for i := range pipelines {
				if _, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
					p.RPush(ctx, "other", "x")
					for j := range each {
						p.RPush(ctx, fmt.Sprint("list", n), i*each+j, padding)
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	commands := recording.Stop()
	if len(commands) != clients*pipelines*each {
		t.Fatalf("recorded %d commands, want %d", len(commands), clients*pipelines*each)
	}
	next := map[string]int{}
	for _, c := range commands {
		if list := c.Args[1]; c.Args[2] != fmt.Sprint(next[list]) || c.Args[3] != padding {
			t.Fatalf("%s: got %q, want number %d", list, c.Args, next[list])
		}
		next[c.Args[1]]++
	}
}

func TestMonitorThatBrokeOffFailsTheTest(t *testing.T) {
	s := Real(t)
	recording := Monitor(t, s.Addr)
	s.Restart()
	failure, failed := fatal(t, func(tb testing.TB) {
		recording.tb = tb
		recording.Stop()
	})
	if !failed || !strings.Contains(failure, "broke off after 0 commands") {
		t.Errorf("failed %v: %q", failed, failure)
	}
}

func TestParseCommand(t *testing.T) {
	const head = `1700000000.000042 [3 127.0.0.1:5] `
	for _, c := range []struct {
		name, line string
		args       []string
	}{
		{"plain", head + `"get" "a b"`, []string{"get", "a b"}},
		{"as on the wire", "+" + head + `"ping"`, []string{"ping"}},
		{"empty arguments", head + `"set" "" ""`, []string{"set", "", ""}},
		{"every escape", head + `"\n\r\t\a\b\\\"\x00\xfF"`, []string{"\n\r\t\a\b\\\"\x00\xff"}},
		{"an escaped backslash before the end", head + `"a\\" "b"`, []string{`a\`, "b"}},
		{"what looks like a separator", head + `"a\" \"b" "c"`, []string{`a" "b`, "c"}},
		{"bytes as they are", head + "\"\xc3\xa4\xff\"", []string{"ä\xff"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseCommand([]byte(c.line))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Args, c.args) {
				t.Errorf("got %q, want %q", got.Args, c.args)
			}
			if got.DB != 3 || got.Lua || got.Source != "127.0.0.1:5" || !got.Time.Equal(time.Unix(1700000000, 42000)) {
				t.Errorf("got %+v", got)
			}
		})
	}
	for source, lua := range map[string]bool{"lua": true, "[::1]:7": false, "unix:/tmp/redis.sock": false} {
		got, err := ParseCommand([]byte(`1.000000 [0 ` + source + `] "ping"`))
		if err != nil || got.Source != source || got.Lua != lua {
			t.Errorf("source %s: got %+v (%v)", source, got, err)
		}
	}
}

func TestParseCommandRefusesWhatIsNoCommand(t *testing.T) {
	const head = `1700000000.000042 [0 lua] `
	for _, line := range []string{
		"", "+OK", "-ERR no", `1700000000.000042 "get"`, `x.000042 [0 lua] "get"`, `1700000000 [0 lua] "get"`,
		`1700000000.42 [0 lua] "get"`, `1700000000.00004x [0 lua] "get"`, `1700000000.000042 [x lua] "get"`,
		`1700000000.000042 [0] "get"`, head, head + "get", head + `"`, head + `"get`, head + `"get" `, head + `"get" "`,
		head + `"get""a"`, head + `"get"  "a"`, head + `"\`, head + `"\q"`, head + `"\x`, head + `"\x0`, head + `"\x0"`,
		head + `"\xg0"`,
	} {
		if got, err := ParseCommand([]byte(line)); err == nil {
			t.Errorf("%q is read as %+v", line, got)
		} else if !strings.Contains(err.Error(), fmt.Sprintf("%q", line)) {
			t.Errorf("the error does not show the line %q: %v", line, err)
		}
	}
}

// Whatever the bytes, quoting them as Redis does and parsing gives them back.
func FuzzParseCommand(f *testing.F) {
	f.Add("set", "\x00\"\\\n\xff")
	f.Add("", `\x41" "`)
	f.Fuzz(func(t *testing.T, a, b string) {
		c, err := ParseCommand([]byte("1.000000 [0 lua] " + quote(a) + " " + quote(b)))
		if err != nil || !slices.Equal(c.Args, []string{a, b}) {
			t.Errorf("%q, %q came back as %q (%v)", a, b, c.Args, err)
		}
		if c, err := ParseCommand([]byte("1.000000 [0 lua] \"" + a)); err == nil && len(c.Args) == 0 {
			t.Errorf("%q is a command without arguments", a)
		}
	})
}

// quote writes an argument as Redis shows it.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case strings.IndexByte(`"\`, c) >= 0:
			b.WriteString(`\` + string(c))
		case strings.IndexByte("\n\r\t\a\b", c) >= 0:
			b.WriteString(`\` + string("nrtab"[strings.IndexByte("\n\r\t\a\b", c)]))
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func TestMonitorTellsWhatAKilledServerDid(t *testing.T) {
	t.Parallel()
	s := Real(t)
	recording := s.Monitor()
	if err := s.Client().Set(ctx, "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command is seen", func() bool {
		recording.mu.Lock()
		defer recording.mu.Unlock()
		return slices.ContainsFunc(recording.commands, func(c Command) bool { return c.Name() == "SET" })
	})
	s.Kill()
	if n := len(recording.Killed()); n == 0 {
		t.Error("nothing was recorded")
	}
}
