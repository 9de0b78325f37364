// Package survey finds limiters on a server. For each limiter it reads what is stored, which
// clients wrote it, and which numbers do not add up. It changes nothing and prints nothing.
package survey

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// find.go goes through the keys of a server, of all masters of a cluster, a little at a time:
// nobody is held up, however many keys there are. What comes or goes meanwhile may be found or not.

// scanned is how many keys Redis looks at in one step.
const scanned = 1000

// Progress is told of every step of a search: by how many keys it went on, and what it has found so
// far.
type Progress func(keys, found int)

// eachMaster runs a search on every server that has keys, on those of a cluster at the same time.
func eachMaster(
	ctx context.Context, rdb redis.UniversalClient, search func(context.Context, *redis.Client) error,
) error {
	switch rdb := rdb.(type) {
	case *redis.ClusterClient:
		return rdb.ForEachMaster(ctx, search)
	case *redis.Client:
		return search(ctx, rdb)
	}
	return errors.New("this kind of client can't be searched")
}

// Keys is how many keys there are, on all masters together.
func Keys(ctx context.Context, rdb redis.UniversalClient) (sum int64, err error) {
	var mu sync.Mutex
	err = eachMaster(ctx, rdb, func(ctx context.Context, master *redis.Client) error {
		n, err := master.DBSize(ctx).Result()
		mu.Lock()
		defer mu.Unlock()
		sum += n
		return err
	})
	return sum, err
}

// scan gives the keys that match a pattern, of one Redis type or, with "", of any, page by page and
// one page at a time. page returns how many of them were sought.
func scan(
	ctx context.Context,
	rdb redis.UniversalClient,
	pattern, kind string,
	progress Progress,
	page func(keys []string) (int, error),
) error {
	var mu sync.Mutex
	found := 0
	return eachMaster(ctx, rdb, func(ctx context.Context, master *redis.Client) error {
		for cursor := uint64(0); ; {
			var keys []string
			var err error
			if kind == "" {
				keys, cursor, err = master.Scan(ctx, cursor, pattern, scanned).Result()
			} else {
				keys, cursor, err = master.ScanType(ctx, cursor, pattern, scanned, kind).Result()
			}
			if err != nil {
				return err
			}
			mu.Lock()
			n, err := page(keys)
			found += n
			if err == nil && progress != nil {
				progress(scanned, found)
			}
			mu.Unlock()
			if err != nil || cursor == 0 {
				return err
			}
		}
	})
}

// Limiters lists the limiters whose name matches a pattern of Redis (glob), in order: those with a
// configuration, be it a broken one (AreLimiters). progress may be nil.
func Limiters(ctx context.Context, rdb redis.UniversalClient, pattern string, progress Progress) ([]string, error) {
	var names []string
	err := scan(ctx, rdb, pattern, "hash", progress, func(keys []string) (int, error) {
		found, err := AreLimiters(ctx, rdb, keys...)
		before := len(names)
		for i, limiter := range found {
			if limiter {
				names = append(names, keys[i])
			}
		}
		return len(names) - before, err
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// AreLimiters tells of each key whether it is the configuration of a limiter: a hash with a rate,
// an interval and a type; or, broken, with two of the three and no field that a limiter does not
// have.
func AreLimiters(ctx context.Context, rdb redis.UniversalClient, keys ...string) ([]bool, error) {
	found := make([]bool, len(keys))
	known := map[int]int{} // fields of a limiter, of those keys that may be a broken one
	fields := make([]*redis.SliceCmd, len(keys))
	err := pipelined(ctx, rdb, len(keys), func(p redis.Pipeliner, i int) {
		fields[i] = p.HMGet(ctx, keys[i], configFields...)
	})
	if err != nil {
		return nil, err
	}
	for i, reply := range fields {
		values := reply.Val()
		if len(values) == 0 {
			continue // another program's, of another type
		}
		missing := 0
		for _, value := range values[:3] {
			if value == nil {
				missing++
			}
		}
		if found[i] = missing == 0; missing == 1 {
			if known[i] = 2; values[3] != nil {
				known[i]++
			}
		}
	}
	broken := slices.Collect(maps.Keys(known))
	lengths := make([]*redis.IntCmd, len(broken))
	err = pipelined(ctx, rdb, len(broken), func(p redis.Pipeliner, i int) { lengths[i] = p.HLen(ctx, keys[broken[i]]) })
	for i, at := range broken {
		found[at] = err == nil && lengths[i].Err() == nil && int(lengths[i].Val()) == known[at]
	}
	return found, err
}

// OtherFields returns, for each limiter, the fields of its configuration that no limiter has: they
// belong to another program, and perhaps the whole hash does.
func OtherFields(ctx context.Context, rdb redis.UniversalClient, names ...string) ([][]string, error) {
	found := make([][]string, 0, len(names))
	for some := range slices.Chunk(names, scanned) {
		known, lengths := make([]*redis.SliceCmd, len(some)), make([]*redis.IntCmd, len(some))
		err := pipelined(ctx, rdb, len(some), func(p redis.Pipeliner, i int) {
			known[i], lengths[i] = p.HMGet(ctx, some[i], configFields...), p.HLen(ctx, some[i])
		})
		if err != nil {
			return nil, err
		}
		for i, name := range some {
			more, err := lengths[i].Result()
			if err != nil && !IsWrongType(err) {
				return nil, err
			}
			for _, value := range known[i].Val() {
				if value != nil {
					more--
				}
			}
			var fields []string
			if more > 0 {
				all, err := rdb.HGetAll(ctx, name).Result()
				if err != nil {
					return nil, err
				}
				fields = slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(field string) bool {
					return slices.Contains(configFields, field)
				})
			}
			found = append(found, fields)
		}
	}
	return found, nil
}

// configFields are the fields of a limiter's configuration. The first three are always there.
var configFields = []string{"rate", "interval", "type", "keepAliveTime"}

// pipelined sends n commands together. What the server says to one of them is no error: a key may
// have become something else meanwhile.
func pipelined(ctx context.Context, rdb redis.UniversalClient, n int, add func(p redis.Pipeliner, i int)) error {
	if n == 0 {
		return nil
	}
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range n {
			add(p, i)
		}
		return nil
	})
	var answer redis.Error
	if errors.As(err, &answer) {
		return nil
	}
	return err
}

// A StateKey is a key that may hold a limiter's state. {x}:value can belong to the limiter x or to
// the limiter {x}.
type StateKey struct {
	Key     string
	Permits bool    // records, else free permits
	Owners  []Owner // who may own it, the most probable first
}

// An Owner is a limiter, and the client that has the key for itself; "" where all share it.
type Owner struct{ Name, Client string }

// StateKeys finds all keys that hold the state of limiters, by their names. progress may be nil.
func StateKeys(ctx context.Context, rdb redis.UniversalClient, progress Progress) ([]StateKey, error) {
	found := map[string]StateKey{}
	// Both "value" and "permits" begin so; one pattern means one walk.
	err := scan(ctx, rdb, "*:[pv][ea][rl][mu][ie]*", "", progress, func(keys []string) (int, error) {
		before := len(found)
		for _, key := range keys {
			if state, ok := parse(key); ok {
				found[key] = state
			}
		}
		return len(found) - before, nil
	})
	all := make([]StateKey, 0, len(found))
	for _, state := range found {
		all = append(all, state)
	}
	slices.SortFunc(all, func(a, b StateKey) int { return strings.Compare(a.Key, b.Key) })
	return all, err
}

// parse reads the name of a key. Owners for whom all of it before the suffix is in braces come
// first: of {a:value:b}:value that is a:value:b, and not the client b}:value of {a.
func parse(key string) (s StateKey, ok bool) {
	s.Key = key
	var others []Owner
	for _, suffix := range []string{":value", ":permits"} {
		for from := 0; ; {
			at := strings.Index(key[from:], suffix)
			if at < 0 {
				break
			}
			head, rest := key[:from+at], key[from+at+len(suffix):]
			from += at + 1
			client, own := strings.CutPrefix(rest, ":")
			if rest != "" && !own || !strings.Contains(head, "{") {
				continue
			}
			inner, wrapped := strings.CutPrefix(head, "{")
			inner, closed := strings.CutSuffix(inner, "}")
			whole := wrapped && closed && !strings.Contains(inner, "{")
			if whole || len(s.Owners) == 0 {
				s.Permits = suffix == ":permits"
			}
			if whole {
				s.Owners = append(s.Owners, Owner{inner, client}, Owner{head, client})
			} else {
				others = append(others, Owner{head, client})
			}
		}
	}
	s.Owners = append(s.Owners, others...)
	return s, len(s.Owners) > 0
}

// Clients lists, for each limiter, the clients that have keys of their own.
func Clients(keys []StateKey) map[string][]string {
	clients := map[string][]string{}
	for _, key := range keys {
		for _, owner := range key.Owners {
			if owner.Client != "" {
				clients[owner.Name] = append(clients[owner.Name], owner.Client)
			}
		}
	}
	for name, ids := range clients {
		slices.Sort(ids)
		clients[name] = slices.Compact(ids)
	}
	return clients
}
