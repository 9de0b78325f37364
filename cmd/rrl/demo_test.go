package main

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
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

func TestDemoOnEmbeddedServer(t *testing.T) {
	start := time.Now()
	code, out, errs := rrl(t.Context(), "demo", "--for", "1500ms")
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
	}
	if took := time.Since(start); took < 1500*time.Millisecond || took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	contains(t, out, "Limiter rrl-demo on embedded server, rate 50/s", "4 workers block in Acquire, 2 pollers try TryAcquire",
		"Summary", "denied", "longest wait", "throughput", "limit           kept")
	if strings.Contains(out, "Redisson") || strings.Contains(out, "\x1b") {
		t.Errorf("output\n%s", out)
	}
	if n := strings.Count(out, "s ["); n < 1 || n > 3 {
		t.Errorf("%d plain lines in\n%s", n, out)
	}
	if n := figure(t, out, `granted +([\d,]+) permits`); n < 60 || n > 100 {
		t.Errorf("%d permits granted", n)
	}
	if n := figure(t, out, `largest window +([\d,]+) of`); n < 30 || n > 50 {
		t.Errorf("largest window %d", n)
	}
}

func TestDemoEndsEarlyInGoodOrder(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	defer time.AfterFunc(700*time.Millisecond, func() { stop(errors.New("interrupt signal received")) }).Stop()
	start := time.Now()
	code, out, errs := rrl(ctx, "demo", "--for", "0", "--rate", "1/h", "--workers", "1", "--pollers", "0")
	if code != 0 || errs != "" || time.Since(start) > 3*time.Second {
		t.Fatalf("exit code %d, errors %q after %v", code, errs, time.Since(start))
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
				code, out, errs := rrl(t.Context(), append([]string{"demo", "--redis", s.URL(), "--for", "600ms"}, args...)...)
				if code != 0 {
					t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
				}
				contains(t, out, "limit           kept", "Redisson.create(config)")
				if strings.Contains(out, "some may have gone unseen") && slices.Contains(args, "--lease") {
					// On a busy machine, polls are missed. What a lease gave back meanwhile counts as others' permits.
					s.Client().FlushDB(t.Context())
					return
				}
				contains(t, out, "has removed it")
				// Before the end, a busy machine may be late to count a grant of the demo as its own.
				if _, summary, _ := strings.Cut(out, "Summary"); strings.Contains(summary, "others") {
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
	limiter := rratelimiter.NewClient(s.Client()).RateLimiter("orders")
	if err := limiter.SetRate(t.Context(), rratelimiter.PerSecond(20)); err != nil {
		t.Fatal(err)
	}
	code, out, errs := rrl(t.Context(), "demo", "--redis", s.URL(), "--name", "orders", "--for", "1200ms")
	if code != 0 {
		t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
	}
	contains(t, out, "The limiter was there already, with the rate 20/s. That one stays and is used, not 50/s.",
		"of at most 20 in any 1s", "trySetRate(RateType.OVERALL, 20, 1, RateIntervalUnit.SECONDS)", "was there before the demo and stays")
	if rate, err := limiter.Config(t.Context()); err != nil || rate != rratelimiter.PerSecond(20) {
		t.Errorf("the rate is %v (%v)", rate, err)
	}
	code, out, _ = rrl(t.Context(), "demo", "--redis", s.URL(), "--name", "orders", "--rate", "20/s", "--for", "100ms")
	contains(t, out, "was there already, with this rate")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// during runs a demo on a server and calls do half a second after its start.
func during(t *testing.T, s *redistest.Server, do func(rdb *redis.Client), args ...string) (code int, out, errs string) {
	t.Helper()
	rdb := s.Client()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for rdb.Exists(t.Context(), "rrl-demo").Val() == 0 && t.Context().Err() == nil {
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(500 * time.Millisecond)
		do(rdb)
	}()
	code, out, errs = rrl(t.Context(), append([]string{"demo", "--redis", s.URL(), "--for", "1500ms"}, args...)...)
	<-done
	return code, out, errs
}

func TestTooHighGrantIsReported(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		code, out, errs := during(t, s, func(rdb *redis.Client) {
			member, _ := rratelimiter.PackRecord(rratelimiter.Redisson317, []byte("intruder"), 60)
			rdb.ZAdd(t.Context(), "{rrl-demo}:permits", redis.Z{Score: float64(time.Now().UnixMilli()), Member: string(member)})
		})
		if code != 1 {
			t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
		}
		contains(t, errs, "rrl: the limit was not kept: the window of 1s", "permits by their records, and the rate is 50/s")
		contains(t, out, ": LIMIT NOT KEPT", "limit           NOT KEPT", "others          60 permits", "others use it now, so it stays")
	})
}

func TestDemoSharesWithOthers(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	code, out, errs := during(t, s, func(rdb *redis.Client) {
		other := rratelimiter.NewClient(rdb).RateLimiter("rrl-demo")
		for range 10 {
			if err := other.Acquire(t.Context(), 2); err != nil {
				t.Error(err)
			}
		}
	}, "--for", "3s")
	if code != 0 {
		t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
	}
	contains(t, out, "others          20 permits granted to other processes", "others use it now, so it stays", "limit           kept")
}

func TestRateChangedByOthers(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	code, out, errs := during(t, s, func(rdb *redis.Client) {
		if err := rratelimiter.NewClient(rdb).RateLimiter("rrl-demo").SetRate(t.Context(), rratelimiter.PerSecond(10)); err != nil {
			t.Error(err)
		}
	})
	if code != 0 {
		t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
	}
	contains(t, out, "another client changed the rate from 50/s to 10/s", "of at most 10 in any 1s", "so it stays")
}

func TestLimiterRemovedByOthers(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	code, out, errs := during(t, s, func(rdb *redis.Client) {
		if _, err := rratelimiter.NewClient(rdb).RateLimiter("rrl-demo").Delete(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if code != 1 || !strings.Contains(errs, "not initialized") {
		t.Fatalf("exit code %d, errors %q, output\n%s", code, errs, out)
	}
}

func TestServerThatGoesAway(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	start := time.Now()
	code, out, errs := during(t, s, func(*redis.Client) { s.Kill() }, "--for", "20s")
	if code != 1 || errs == "" || time.Since(start) > 18*time.Second {
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
	code, out, errs := rrl(t.Context(), "demo", "--redis", "redis://"+strings.Join(nodes.Addrs(), ","), "--for", "1200ms")
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
	redistest.Main(m)
}

const asProgram = "RRL_TEST_AS_PROGRAM"
