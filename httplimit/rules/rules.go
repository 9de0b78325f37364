// Package rules takes the limits of an httplimit.Guard from a file, which operators change while the program runs.
//
//	guard := httplimit.New()
//	err := rules.Watch(ctx, guard, "limits.yaml", rules.Config{Client: client, Addr: httplimit.ClientAddr{Trusted: proxies}})
//	if err != nil {
//		log.Fatal(err) // one line for each fault: limits.yaml:7: ...
//	}
//	http.ListenAndServe(":8080", guard.Middleware(mux))
//
// The file is YAML:
//
//	exempt: 10.0.0.0/8          # clients that no limit applies to
//	limits:
//	  per-second:               # a name
//	    key: address            # each address has 10 requests a second
//	    rate: 10/s
//	  search:
//	    key: header X-API-Key or address
//	    rate: 600/m
//	    cost: 5                 # a request takes 5 of the 600
//	    paths: [/search, /export/]
//	    methods: [GET, POST]
//	    exempt: [192.0.2.7, 2001:db8::/32]
//
// A request passes if all limits that apply to it allow it. Limits are checked in the order of the file where one call
// cannot check them all (see package httplimit), so the narrowest should come first. A limit has these fields; key and
// rate are required, and a list of one value can be written as that value:
//
//   - key: which requests share the rate. One of address, path, route, header NAME, which are those of package
//     httplimit; a key of the program (Config.Keys); or all, for one rate of all requests together. "A or B" is A, and
//     B for requests without A. Requests share the key of a list if they share each element. The limit does not apply
//     to a request without a key: one that has no such header.
//   - rate: as rratelimiter.ParseRate reads it: 100/s, 5/250ms, 1000/h; not per client.
//   - cost: the permits that each request takes: 1, the default, to those of the rate.
//   - paths: the limit applies to these paths, with or without a slash at their end, and to all that is below one that
//     is written with a slash. Default: all.
//   - methods: the limit applies to these methods. GET includes HEAD, as in http.ServeMux. Default: all.
//   - exempt: addresses and networks of clients that the limit does not apply to. The address of a client is that of
//     Config.Addr. A request whose client is not known is not exempt.
//
// The name of a limit has letters, digits and "_.-". It is a part of its limiters' names in Redis, as in
// httplimit.Per: limits with one name and key are one limit, in all processes and services on one Redis.
package rules

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// rules.go makes limits of the rules in a file, and follows its changes. parse.go reads the file.

// A Config is what limits need beside their file.
type Config struct {
	// Client has the limiters. It must not be nil.
	Client *rratelimiter.Client
	// Addr finds the address of a request, for the key address and for exempt networks.
	Addr httplimit.ClientAddr
	// Keys are keys of the program, such as the user or the tenant, by the words for them in the file. One of them may
	// replace a word above.
	Keys map[string]httplimit.Key
	// Every is the time between two reads of the file; 0 is 2 s.
	Every time.Duration
	// Logger gets one line for each change of the file. nil is slog.Default().
	Logger *slog.Logger
}

// Watch gives a guard the limits of a file, and new ones when the file changes, until ctx ends. If the file has faults or
// cannot be read at first, it returns an error (Faults, or that of os.ReadFile) and does nothing else.
//
// It reads the file every Config.Every. New content is in force once it was read twice, so that a file that is being
// written is not taken for a complete one: by default 2 to 4 s after a change. A new file that has faults, and one that
// cannot be read, change nothing and are logged. The old limits or the new ones decide each request: a request that began
// before a change keeps its limits, also for what it gives back after its response. A rate that changes counts live
// grants. While processes on one Redis have different files, each sets its own rates again and again.
func Watch(ctx context.Context, guard *httplimit.Guard, file string, c Config) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	limits, err := Parse(file, data, c.words()...)
	if err != nil {
		return err
	}
	guard.SetLimits(c.build(limits)...)
	go c.follow(ctx, guard, file, data)
	return nil
}

// follow gives a guard the limits of a file whenever its content is not the one that was read last.
func (c Config) follow(ctx context.Context, guard *httplimit.Guard, file string, last []byte) {
	every, logger := c.Every, c.Logger
	if every <= 0 {
		every = 2 * time.Second
	}
	if logger == nil {
		logger = slog.Default()
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var changed []byte // content that was read once; nil: none
	problem := ""      // of the last read
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		data, err := os.ReadFile(file)
		if err != nil {
			if err.Error() != problem {
				problem = err.Error()
				logger.ErrorContext(ctx, "the file of rules cannot be read, and its last rules stay in force", "file", file, "error", err)
			}
			continue
		}
		problem = ""
		if bytes.Equal(data, last) {
			changed = nil
			continue
		}
		if changed == nil || !bytes.Equal(data, changed) {
			changed = data
			continue
		}
		last, changed = data, nil
		limits, err := Parse(file, data, c.words()...)
		if err != nil {
			logger.ErrorContext(ctx, "the file of rules has faults, and the rules before stay in force", "file", file, "error", err)
			continue
		}
		guard.SetLimits(c.build(limits)...)
		logger.InfoContext(ctx, "new rules are in force", "file", file, "limits", len(limits))
	}
}

// words returns the words for keys of the program.
func (c Config) words() []string { return slices.Sorted(maps.Keys(c.Keys)) }

// build makes the limits of a guard.
func (c Config) build(limits []Limit) []httplimit.Limit {
	all := make([]httplimit.Limit, len(limits))
	for i, l := range limits {
		limit := httplimit.Per(c.Client, l.Name, l.Rate, c.key(l.key))
		if l.Cost > 1 {
			limit = limit.Cost(func(*http.Request) int64 { return l.Cost })
		}
		all[i] = func(r *http.Request) httplimit.Claim {
			if !l.covers(r) || c.exempt(r, l.Exempt) {
				return httplimit.Claim{Name: l.Name}
			}
			return limit(r)
		}
	}
	return all
}

// key makes a key of its words: keys to be joined, of each the first one that a request has. nil is the key of all.
func (c Config) key(words [][]string) httplimit.Key {
	if words == nil {
		return nil
	}
	joined := make([]httplimit.Key, len(words))
	for i, alternatives := range words {
		firsts := make([]httplimit.Key, len(alternatives))
		for j, word := range alternatives {
			firsts[j] = c.keyOf(word)
		}
		joined[i] = httplimit.First(firsts...)
	}
	return httplimit.Join(joined...)
}

func (c Config) keyOf(word string) httplimit.Key {
	if key := c.Keys[word]; key != nil {
		return key
	}
	switch word {
	case "address":
		return c.Addr.Key
	case "path":
		return httplimit.Path
	case "route":
		return httplimit.Route
	}
	return httplimit.Header(strings.TrimPrefix(word, headerWord))
}

func (c Config) exempt(r *http.Request, networks []netip.Prefix) bool {
	if len(networks) == 0 {
		return false
	}
	addr, known := c.Addr.Addr(r)
	return known && slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(addr) })
}

// covers reports whether the limit is for the method and the path of a request. The path counts as it is, and as it is
// once cleaned: handlers may serve it in either form, and neither must avoid the limit.
func (l Limit) covers(r *http.Request) bool {
	method, asked := r.Method, r.URL.Path
	if method == http.MethodHead && !slices.Contains(l.Methods, method) {
		method = http.MethodGet
	}
	return (l.Methods == nil || slices.Contains(l.Methods, method)) &&
		(l.Paths == nil || within(asked, l.Paths) || within(path.Clean("/"+asked), l.Paths))
}

// within reports whether a path is one of several, with or without a slash at its end, or below one that ends with a slash.
func within(asked string, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool {
		return strings.TrimSuffix(asked, "/") == strings.TrimSuffix(p, "/") || strings.HasSuffix(p, "/") && strings.HasPrefix(asked, p)
	})
}
