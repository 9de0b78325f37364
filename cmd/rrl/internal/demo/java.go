package demo

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/redisson"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// java.go has what a demo says to Java: the settings of a JVM that it starts (--java), or else a
// Java program that joins the limiter.

// build returns the jar of the JVM, and says what it does if the jar has to be built first.
func build(ctx context.Context, release string, out io.Writer) (string, error) {
	const pause = 2 * time.Second // between two lines
	live, said := render.IsTerminal(out), time.Now()
	jar, err := redisson.Build(ctx, release, func(progress string) {
		switch {
		case progress == "":
			fmt.Fprintf(out, "Maven gets Redisson %s and compiles the Java side, once.\n", release)
		case live:
			fmt.Fprintf(out, "\r%s", progress)
		case time.Since(said) >= pause:
			fmt.Fprintln(out, progress)
			said = time.Now()
		}
	})
	if live {
		fmt.Fprint(out, "\r\x1b[K")
	}
	return jar, err
}

// settings returns those of a JVM whose threads make the same requests as the callers in Go.
func settings(s *connect.Server, o Options) redisson.Settings {
	work, poll := o.Load.pauses()
	scheme := "redis"
	if s.Options.TLSConfig != nil {
		scheme = "rediss"
	}
	return redisson.Settings{
		Address: scheme + "://" + s.Options.Addr, Database: s.Options.DB, User: s.Options.Username,
		Password: s.Options.Password,
		Name:     o.Name, Permits: o.Load.Permits,
		Workers: o.Load.Workers, WorkPause: work, Pollers: o.Load.Pollers, PollPause: poll,
	}
}

// javaSnippet returns Java code that uses the same limiter through Redisson, and sets the same rate
// if there is none. It contains a placeholder instead of a password.
func javaSnippet(s *connect.Server, name string, r rratelimiter.Rate, permits int64) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	since := "3.17"
	if r.KeepAlive > 0 {
		since = "3.38"
	}
	line("// Java, Redisson %s or later (org.redisson:redisson)", since)
	line("Config config = new Config();")
	user, password := "", s.HasPassword()
	switch {
	case s.Options == nil:
		var nodes []string
		for _, node := range s.Nodes {
			nodes = append(nodes, javaString("redis://"+node))
		}
		line("config.useClusterServers().addNodeAddress(%s)%s;", strings.Join(nodes, ", "), javaLogin(user, password))
	case s.Options.Network == "unix":
		line("// the server of %s, at its TCP address:", javaComment(s.Options.Addr))
		line(`config.useSingleServer().setAddress("redis://HOST:6379").setDatabase(%d)%s;`,
			s.Options.DB, javaLogin(s.Options.Username, password))
	default:
		scheme := "redis"
		if s.Options.TLSConfig != nil {
			scheme = "rediss"
		}
		database := ""
		if s.Options.DB != 0 {
			database = fmt.Sprintf(".setDatabase(%d)", s.Options.DB)
		}
		line("config.useSingleServer().setAddress(%s)%s%s;",
			javaString(scheme+"://"+s.Options.Addr), database, javaLogin(s.Options.Username, password))
	}
	line("RRateLimiter limiter = Redisson.create(config).getRateLimiter(%s);", javaString(name))
	kind := "RateType." + r.Type.String()
	if r.KeepAlive > 0 {
		line("limiter.trySetRate(%s, %d, Duration.ofMillis(%d), Duration.ofMillis(%d));",
			kind, r.Permits, r.Interval.Milliseconds(), r.KeepAlive.Milliseconds())
	} else {
		n, unit := javaInterval(r.Interval)
		line("limiter.trySetRate(%s, %d, %d, RateIntervalUnit.%s);", kind, r.Permits, n, unit)
	}
	if r.Type == rratelimiter.PerClient {
		line("// the rate is for each client by itself: this program has its own permits")
	}
	line("while (true) {")
	line("    limiter.acquire(%d);", permits)
	line(`    System.out.println("granted");`)
	line("}")
	return b.String()
}

func javaLogin(user string, password bool) string {
	login := ""
	if user != "" {
		login = "\n    .setUsername(" + javaString(user) + ")"
	}
	if password {
		login += "\n    .setPassword(System.getenv(\"REDIS_PASSWORD\"))"
	}
	return login
}

// javaInterval returns an interval in the largest of Redisson's units of which it is a whole
// number.
func javaInterval(d time.Duration) (n int64, unit string) {
	for _, u := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "DAYS"}, {time.Hour, "HOURS"}, {time.Minute, "MINUTES"}, {time.Second, "SECONDS"}} {
		if d%u.length == 0 {
			return int64(d / u.length), u.name
		}
	}
	return d.Milliseconds(), "MILLISECONDS"
}

// javaString returns a Java literal. All but plain characters are written as UTF-16 escapes.
func javaString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r >= ' ' && r < 0x7f:
			b.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// javaComment returns a text without line ends and escapes for Java.
func javaComment(s string) string {
	return strings.ReplaceAll(strings.Trim(strconv.Quote(s), `"`), `\`, "/")
}
