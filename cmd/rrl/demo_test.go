package main

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// contains fails the test unless a text has all the parts.
func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

// figure parses a number in a text, by a pattern.
func figure(t *testing.T, text, pattern string) int {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no %s in\n%s", pattern, text)
	}
	n, err := strconv.Atoi(strings.ReplaceAll(found[1], ",", ""))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// runDemo runs rrl demo, and again if a call took longer than calls may take, as happens on a busy
// machine.
func runDemo(t *testing.T, rdb *redis.Client, args ...string) (code int, out, errs string) {
	t.Helper()
	for range 5 {
		code, out, errs = rrl(t.Context(), append([]string{"demo"}, args...)...)
		if !strings.Contains(errs, "no answer within") && !strings.Contains(errs, "may or may not have been served") {
			break
		}
		if rdb != nil {
			rdb.Del(t.Context(), "rrl-demo", "{rrl-demo}:value", "{rrl-demo}:permits")
		}
	}
	return code, out, errs
}

func TestDemoOnEmbeddedServer(t *testing.T) {
	const attempts = 5 // a busy machine may hold up the callers, or the end
	for i := range attempts {
		start := time.Now()
		code, out, errs := runDemo(t, nil, "--for", "1500ms")
		took := time.Since(start)
		if code != 0 || errs != "" {
			t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
		}
		contains(
			t, out, "Limiter rrl-demo on embedded server, rate 50/s",
			"4 workers block in Acquire, 2 pollers try TryAcquire",
			"Summary", "denied", "longest wait", "throughput", "limit           kept",
		)
		if strings.Contains(out, "Redisson") || strings.Contains(out, "\x1b") {
			t.Errorf("output\n%s", out)
		}
		lines, granted := strings.Count(out, "s ["), figure(t, out, `granted +([\d,]+) permits`)
		largest := figure(t, out, `largest window +([\d,]+) of`)
		if took < 1500*time.Millisecond || largest > 50 {
			t.Errorf("after %v, largest window %d", took, largest)
		}
		if took <= 4*time.Second && lines >= 1 && lines <= 3 && granted >= 60 && granted <= 100 && largest >= 30 {
			return
		}
		t.Logf("attempt %d: %d lines, %d permits, largest window %d, in %v", i, lines, granted, largest, took)
	}
	t.Errorf("no demo in %d was as it should be", attempts)
}

func TestDemoEndsEarlyInGoodOrder(t *testing.T) {
	var stopped time.Time
	code, out, errs := rrlBeside(t.Context(), func(ctx context.Context, out *tape) {
		out.await(ctx, "granted 1 ")
		stopped = time.Now()
	}, "demo", "--for", "0", "--rate", "1/h", "--workers", "1", "--pollers", "0")
	if code != 0 || errs != "" || time.Since(stopped) > 15*time.Second {
		t.Fatalf("exit code %d, errors %q, %v after the signal", code, errs, time.Since(stopped))
	}
	contains(t, out, "granted         1 permit:", "limit           kept")
}

// Calls of different sizes and speeds, each on an embedded and a real server.
func TestDemoKeepsTheLimit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, args := range [][]string{
			{"--rate", "200/250ms", "--demand", "0", "--workers", "16", "--pollers", "4"},
			{"--rate", "6/250ms", "--permits", "3"},
			{"--rate", "15/250ms per client"},
			{"--rate", "5/20ms", "--demand", "3"},
			{"--rate", "25/250ms keep-alive 1m"},
			{"--rate", "200/250ms", "--lease", "10ms"},
			{"--rate", "2000/250ms", "--lease", "10ms", "--workers", "0", "--pollers", "8"},
		} {
			t.Run(strings.Join(args, " "), func(t *testing.T) {
				code, out, errs := runDemo(t, s.Client(),
					append([]string{"--redis", s.URL(), "--for", "600ms"}, args...)...)
				if code != 0 {
					t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
				}
				contains(t, out, "limit           kept", "Redisson.create(config)")
				if strings.Contains(out, "gone unseen") && slices.Contains(args, "--lease") {
					// On a busy machine, polls are missed. What a lease gave back meanwhile counts
					// as others' permits.
					s.Client().FlushDB(t.Context())
					return
				}
				contains(t, out, "has removed it")
				// Before the end, a busy machine may be late to count a grant of the demo as its
				// own.
				if _, summary, _ := strings.Cut(out, "Summary"); strings.Contains(summary, "\n  others ") {
					t.Errorf("nobody else was there\n%s", out)
				}
			})
		}
		if keys, err := s.Client().Keys(t.Context(), "*").Result(); err != nil || len(keys) > 0 {
			t.Errorf("the demos left %q (%v)", keys, err)
		}
	})
}

func TestDemoLeavesForeignLimiter(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	limiter := rrltest.Client(s.Client()).RateLimiter("orders")
	if err := limiter.SetRate(t.Context(), rratelimiter.PerSecond(20)); err != nil {
		t.Fatal(err)
	}
	code, out, errs := runDemo(t, nil, "--redis", s.URL(), "--name", "orders", "--for", "1200ms")
	if code != 0 {
		t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
	}
	contains(
		t, out, "The limiter was there already, with the rate 20/s. That one stays and is used, not 50/s.",
		"of at most 20 in any 1s", "trySetRate(RateType.OVERALL, 20, 1, RateIntervalUnit.SECONDS)",
		"was there before the demo and stays",
	)
	if rate, err := limiter.Config(t.Context()); err != nil || rate != rratelimiter.PerSecond(20) {
		t.Errorf("the rate is %v (%v)", rate, err)
	}
	code, out, _ = runDemo(t, nil, "--redis", s.URL(), "--name", "orders", "--rate", "20/s", "--for", "100ms")
	contains(t, out, "was there already, with this rate")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// during runs a demo on a server, calls do half a second after its start, and ends the demo once
// its output has a text.
func during(
	t *testing.T, s *redistest.Server, do func(rdb *redis.Client), seen string, args ...string,
) (code int, out, errs string) {
	t.Helper()
	rdb := s.Client()
	return rrlBeside(t.Context(), func(ctx context.Context, out *tape) {
		for rdb.Exists(ctx, "rrl-demo").Val() == 0 && ctx.Err() == nil {
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(500 * time.Millisecond)
		do(rdb)
		out.await(ctx, seen)
	}, append([]string{"demo", "--redis", s.URL(), "--for", "0"}, args...)...)
}

// never is seen in no output: the demo ends by itself.
const never = "\x00"

func TestTooHighGrantIsReported(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		code, out, errs := during(t, s, func(rdb *redis.Client) {
			member, _ := rratelimiter.PackRecord(rratelimiter.Redisson317, []byte("intruder"), 60)
			rdb.ZAdd(t.Context(), "{rrl-demo}:permits",
				redis.Z{Score: float64(time.Now().UnixMilli()), Member: string(member)})
		}, ": LIMIT NOT KEPT", "--rate", "50/5s") // so long that the demo sees the record on a busy machine, too
		if code != 1 {
			t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
		}
		contains(t, errs, "rrl: the limit was not kept: the window of 5s",
			"permits by their records, and the rate is 50/5s")
		contains(
			t, out, ": LIMIT NOT KEPT", "limit           NOT KEPT", "others          60 permits",
			"others use it now, so it stays",
		)
	})
}

func TestDemoSharesWithOthers(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	code, out, errs := during(t, s, func(rdb *redis.Client) {
		other := rrltest.Client(rdb).RateLimiter("rrl-demo")
		for range 10 {
			if err := other.Acquire(t.Context(), 2); err != nil {
				t.Error(err)
			}
		}
	}, ", others 20", "--rate", "50/5s") // as above
	if code != 0 {
		t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
	}
	contains(
		t, out, "others          20 permits granted to other processes", "others use it now, so it stays",
		"limit           kept",
	)
}

func TestRateChangedByOthers(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	code, out, errs := during(t, s, func(rdb *redis.Client) {
		if err := rrltest.Client(rdb).RateLimiter("rrl-demo").SetRate(t.Context(),
			rratelimiter.PerSecond(10)); err != nil {
			t.Error(err)
		}
	}, "/10 granted")
	if code != 0 {
		t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
	}
	contains(t, out, "another client changed the rate from 50/s to 10/s", "of at most 10 in any 1s", "so it stays")
}

func TestLimiterRemovedByOthers(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	code, out, errs := during(t, s, func(rdb *redis.Client) {
		if _, err := rrltest.Client(rdb).RateLimiter("rrl-demo").Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}, never)
	if code != 1 || !strings.Contains(errs, "not initialized") {
		t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
	}
}

func TestServerThatGoesAway(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	start := time.Now()
	code, out, errs := during(t, s, func(*redis.Client) { s.Kill() }, never)
	if code != 1 || errs == "" || time.Since(start) > 30*time.Second {
		t.Fatalf("exit code %d after %v, errors %q, output\n%s", code, time.Since(start), errs, out)
	}
}

func TestWrongTypeIsReported(t *testing.T) {
	s := redistest.Real(t)
	if err := s.Client().Set(t.Context(), "rrl-demo", "mine", 0).Err(); err != nil {
		t.Fatal(err)
	}
	code, _, errs := rrl(t.Context(), "demo", "--redis", s.URL())
	if code != 1 || !strings.Contains(errs, "WRONGTYPE") {
		t.Errorf("exit code %d, errors %q", code, errs)
	}
	if got := s.Client().Get(t.Context(), "rrl-demo").Val(); got != "mine" {
		t.Errorf("the key holds %q", got)
	}
}

func TestDemoOnCluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3)
	code, out, errs := runDemo(t, nil, "--redis", "redis://"+strings.Join(nodes.Addrs(), ","), "--for", "1200ms")
	if code != 0 {
		t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
	}
	contains(t, out, "the cluster of", "useClusterServers()", "limit           kept", "has removed it")
}

// TestMain lets the test binary be rrl, for tests that need a process of it.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	rrltest.Main(m)
}

const asProgram = "RRL_TEST_AS_PROGRAM"
