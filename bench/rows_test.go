package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

var twoOfFour = []bool{true, true, false, false}

// grants asks four times for a permit of the second limiter of a scene.
func grants(t *testing.T, b *lab, c *contender, s scene) (granted []bool) {
	t.Helper()
	r, err := c.open(t.Context(), b, s)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for range 4 {
		ok, err := r.(goRunner).ask(t.Context(), 1, 1, false)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		granted = append(granted, ok)
	}
	return granted
}

func TestAPairIsGrantedByBothLimiters(t *testing.T) {
	b := newLab(t, quick)
	hour := func(permits int64) rratelimiter.Rate { return rratelimiter.PerHour(permits) }
	for _, c := range pairRows() {
		if c.name == rowPing {
			continue
		}
		for _, s := range []scene{
			{addr: b.addr, names: []string{"a", "b"}, rate: hour(2), beside: hour(9)},
			{addr: b.addr, names: []string{"a", "b"}, rate: hour(9), beside: hour(2)},
		} {
			if err := b.clear(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := b.setScene(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if granted := grants(t, b, c, s); !slices.Equal(granted, twoOfFour) {
				t.Errorf("%s with %v and %v: %v", c.name, s.rate, s.beside, granted)
			}
		}
	}
}

func TestRedissonsScriptGetsItsArguments(t *testing.T) {
	b := newLab(t, quick)
	b.script = `if #KEYS ~= 5 or ARGV[1] ~= '1' or not tonumber(ARGV[2]) or #ARGV[3] ~= 16 then
  return redis.error_reply('other arguments')
end
return redis.call('INCR', KEYS[2]) > 2 and 1000 or nil` // as Redisson's, it returns nil or the ms to wait
	for _, c := range contenders(rowScript, rowMultiplexed) {
		if err := b.clear(t.Context()); err != nil {
			t.Fatal(err)
		}
		if granted := grants(t, b, c,
			scene{addr: b.addr, names: []string{"a", "b"}}); !slices.Equal(granted, twoOfFour) {
			t.Errorf("%s: %v", c.name, granted)
		}
	}
}

func TestPeersRefuseWhatIsAboveTheRate(t *testing.T) {
	b := newLab(t, quick)
	for _, c := range contenders(rowRedisRate, rowGCRA) {
		s := scene{addr: b.addr, names: []string{"a", "b"}, rate: rratelimiter.PerHour(2)}
		if granted := grants(t, b, c, s); !slices.Equal(granted, twoOfFour) {
			t.Errorf("%s: %v", c.name, granted)
		}
	}
}

func TestGCRAGrantsAgainAsTimePasses(t *testing.T) {
	b := newLab(t, quick)
	for _, c := range []struct{ now, permits, wait int64 }{
		{1000, 4, 0}, {1000, 1, 250}, {1200, 1, 50}, {1250, 1, 0}, {1250, 1, 250}, {1750, 2, 0}, {9000, 5, 250},
		{9000, 4, 0},
	} {
		wait, err := b.rdb.Eval(t.Context(), gcra, []string{"key"}, c.now, 250, 1000, c.permits).Int64()
		if err != nil || wait != c.wait {
			t.Errorf("%d permits at %d ms: %d, %v, want %d", c.permits, c.now, wait, err, c.wait)
		}
	}
	if left := b.rdb.PTTL(t.Context(), "key").Val(); left <= 0 || left > time.Second {
		t.Errorf("the key leaves after %v", left)
	}
}

func TestTheSecondIsAskedOnlyIfTheFirstGrants(t *testing.T) {
	asked := map[string]int{}
	open := inTurn(func(_ context.Context, _ *lab, s scene, _ *redis.Client) (asker, error) {
		return func(_ context.Context, i int, _ int64, _ bool) (bool, error) {
			asked[s.names[i]]++
			return i == 0, nil
		}, nil
	})
	ask, err := open(
		t.Context(), nil,
		scene{names: []string{"a", "b"}, beside: rratelimiter.Rate{Permits: 1, Interval: time.Second}}, nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false} {
		if granted, err := ask(t.Context(), i, 1, false); granted != want || err != nil {
			t.Errorf("pair %d: %v, %v", i, granted, err)
		}
	}
	if asked["a"] != 1 || asked["a:minute"] != 1 || asked["b"] != 1 || asked["b:minute"] != 0 {
		t.Errorf("asked: %v", asked)
	}
}
