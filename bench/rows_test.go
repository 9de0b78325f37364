package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

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
			r, err := c.open(t.Context(), b, s)
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			var granted []bool
			for range 4 {
				ok, err := r.(goRunner).ask(t.Context(), 1, 1, false)
				if err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				granted = append(granted, ok)
			}
			if !slices.Equal(granted, []bool{true, true, false, false}) {
				t.Errorf("%s with %v and %v: %v", c.name, s.rate, s.beside, granted)
			}
		}
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
	ask, err := open(t.Context(), nil, scene{names: []string{"a", "b"}, beside: rratelimiter.Rate{Permits: 1, Interval: time.Second}}, nil)
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
