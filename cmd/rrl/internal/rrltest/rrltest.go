// Package rrltest writes keys of limiters for tests: valid and invalid states, as Go and Java
// clients write them.
package rrltest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// Main runs the tests of a package with more time for Redis, and without lines about waiting: the
// machine may be busy.
func Main(m *testing.M) {
	connect.DefaultTimeout, render.Soon = time.Minute, time.Hour
	redistest.Main(m)
}

// Client returns a client of limiters whose calls may take long, as the machine may be busy.
func Client(rdb redis.UniversalClient, opts ...rratelimiter.Option) *rratelimiter.Client {
	return rratelimiter.NewClient(
		rdb,
		append([]rratelimiter.Option{rratelimiter.WithCallTimeout(10 * time.Second)}, opts...)...)
}

// Limiter writes a configuration: rate, interval in ms, type, and more fields.
func Limiter(t *testing.T, rdb *redis.Client, name string, fields ...string) {
	t.Helper()
	names := []string{"rate", "interval", "type"}
	all := append([]string(nil), fields[min(3, len(fields)):]...)
	for i, field := range fields[:min(3, len(fields))] {
		all = append(all, names[i], field)
	}
	must(t, rdb.HSet(t.Context(), name, all).Err())
}

// State writes free permits and records into the keys of a client: each record is ms from now, and
// a member. With client "" the keys are the shared ones; with value "" there are no free permits.
func State(t *testing.T, rdb *redis.Client, name, client, value string, records ...any) {
	t.Helper()
	suffix := ""
	if client != "" {
		suffix = ":" + client
	}
	if value != "" {
		must(t, rdb.Set(t.Context(), "{"+name+"}:value"+suffix, value, 0).Err())
	}
	for i := 0; i < len(records); i += 2 {
		at := float64(Now(t, rdb) + int64(records[i].(int)))
		must(t, rdb.ZAdd(t.Context(), "{"+name+"}:permits"+suffix, redis.Z{Score: at, Member: records[i+1]}).Err())
	}
}

// Now returns the server's time in ms since the epoch.
func Now(t *testing.T, rdb *redis.Client) int64 { return rdb.Time(t.Context()).Val().UnixMilli() }

// GoRecord returns a record of a Go client.
func GoRecord(tag string, permits uint32) string {
	return Record(rratelimiter.Redisson317, ("Go" + tag + "12345678")[:8], permits)
}

// JavaRecord returns a record of Redisson.
func JavaRecord(f rratelimiter.RecordFormat, permits uint32) string {
	length := map[rratelimiter.RecordFormat]int{rratelimiter.Redisson313: 4, rratelimiter.Redisson321: 16}[f]
	if length == 0 {
		length = 8
	}
	return Record(f, "0123456789abcdef"[:length], permits)
}

// Record returns a record with an id.
func Record(f rratelimiter.RecordFormat, id string, permits uint32) string {
	member, err := rratelimiter.PackRecord(f, []byte(id), permits)
	if err != nil {
		panic(err)
	}
	return string(member)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Lines passes on each line that is written to it, such as those of a logger.
type Lines chan string

func (l Lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
