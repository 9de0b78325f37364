package compat

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/snapshot"
)

// states_test.go maintains ../testdata: limiters as each Redisson leaves them, for the tests that
// run without Java. ../testdata/README.md describes the states, and
// ../internal/tests/redisson/testdata_test.go checks them.

const statesDir = "../testdata"

// A state is a limiter and the calls that produce it.
type state struct {
	name  string
	since string
	make  func(ctx context.Context, java *redisson.Process, name string) error
}

var states = []state{
	{"fresh", "", func(ctx context.Context, java *redisson.Process, name string) error {
		return setRate(ctx, java, name, redisson.Rate{Permits: 5, Interval: time.Hour})
	}},
	{"part", "", func(ctx context.Context, java *redisson.Process, name string) error {
		return taken(ctx, java, name, redisson.Rate{Permits: 5, Interval: time.Hour}, 2, 1)
	}},
	{"full", "", func(ctx context.Context, java *redisson.Process, name string) error {
		return taken(ctx, java, name, redisson.Rate{Permits: 5, Interval: time.Hour}, 2, 3)
	}},
	{"expired", "", func(ctx context.Context, java *redisson.Process, name string) error {
		err := taken(ctx, java, name, redisson.Rate{Permits: 5, Interval: 20 * time.Millisecond}, 5)
		time.Sleep(40 * time.Millisecond)
		return err
	}},
	{"client", "", func(ctx context.Context, java *redisson.Process, name string) error {
		return taken(ctx, java, name, redisson.Rate{Type: redisson.PerClient, Permits: 5, Interval: time.Hour}, 2)
	}},
	{"ttl", "", func(ctx context.Context, java *redisson.Process, name string) error {
		if err := taken(ctx, java, name, redisson.Rate{Permits: 5, Interval: time.Hour}, 2); err != nil {
			return err
		}
		if _, err := java.Expire(ctx, name, 2*time.Hour); err != nil {
			return err
		}
		return take(ctx, java, name, 1)
	}},
	{"keepalive", "3.38.0", func(ctx context.Context, java *redisson.Process, name string) error {
		return taken(ctx, java, name, redisson.Rate{Permits: 5, Interval: time.Hour, KeepAlive: 3 * time.Hour}, 2)
	}},
}

func setRate(ctx context.Context, java *redisson.Process, name string, rate redisson.Rate) error {
	set, err := java.TrySetRate(ctx, name, rate)
	if err == nil && !set {
		err = fmt.Errorf("%s has a rate already", name)
	}
	return err
}

func take(ctx context.Context, java *redisson.Process, name string, n int64) error {
	granted, err := java.TryAcquire(ctx, name, n)
	if err == nil && !granted {
		err = fmt.Errorf("%s refuses %d permits", name, n)
	}
	return err
}

func taken(ctx context.Context, java *redisson.Process, name string, rate redisson.Rate, sizes ...int64) error {
	err := setRate(ctx, java, name, rate)
	for _, n := range sizes {
		if err == nil {
			err = take(ctx, java, name, n)
		}
	}
	return err
}

// TestStates lets each Redisson produce its states again, and compares them with the stored ones.
// With -update it stores the new ones.
func TestStates(t *testing.T) {
	server := redistest.Real(t)
	rdb := server.Client()
	for _, version := range redisson.Versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			java := redisson.Start(t, version, redisson.Addr(server.Addr))
			for _, s := range states {
				if before(version, s.since) {
					continue
				}
				name := version + ":" + s.name
				if err := s.make(t.Context(), java, name); err != nil {
					t.Fatal(err)
				}
				made, err := snapshot.Take(t.Context(), rdb, name, snapshot.WithNote("Redisson "+version))
				if err != nil {
					t.Fatal(err)
				}
				file := filepath.Join(statesDir, version, s.name+".msgpack")
				if *update {
					keep(t, made, file)
					continue
				}
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatalf("%v: make testdata writes it", err)
				}
				kept, err := snapshot.Decode(data)
				if err != nil {
					t.Fatal(err)
				}
				if a, b := shape(t, made), shape(t, kept); a != b {
					t.Errorf("%s is not what %s makes now: make testdata writes it anew\nkept: %s\nmade: %s",
						file, version, b, a)
				}
			}
		})
	}
}

func keep(t *testing.T, s *snapshot.Snapshot, file string) {
	t.Helper()
	s.Name = filepath.Base(file[:len(file)-len(".msgpack")])
	data, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// shape describes the parts of a state that are the same each time: all but ids, times and
// remaining TTLs.
func shape(t *testing.T, s *snapshot.Snapshot) string {
	t.Helper()
	if s.Config == nil {
		return "no configuration"
	}
	fields := slices.SortedFunc(
		slices.Values(s.Config.Fields), func(a, b snapshot.Field) int { return cmp.Compare(a.Name, b.Name) },
	)
	text := fmt.Sprintf("%v, lives %s", fields, rounded(s.Config.TTL))
	pair := func(owner string, st snapshot.State) {
		if st.Value != nil {
			text += fmt.Sprintf("; %s value %s, lives %s", owner, st.Value.Text, rounded(st.Value.TTL))
		}
		if st.Permits == nil {
			return
		}
		for _, r := range st.Permits.Records {
			record, err := rratelimiter.UnpackRecord(r.Member)
			if err != nil {
				t.Fatal(err)
			}
			text += fmt.Sprintf(
				"; %s record of %d bytes, id of %d, %d permits", owner, len(r.Member), len(record.ID), record.Permits,
			)
		}
		text += fmt.Sprintf(", live %s", rounded(st.Permits.TTL))
	}
	pair("shared", s.Shared)
	for _, c := range s.Clients {
		pair("client's", c.State)
	}
	return text
}

func rounded(ttl time.Duration) string { return ttl.Round(time.Hour).String() }
