// Package rules reads the limits of an httplimit.Guard from a file. Operators can change the file
// while the program runs.
//
//	guard := httplimit.New()
//	config := rules.Config{Client: client, Addr: httplimit.ClientAddr{Trusted: proxies}}
//	err := rules.Watch(ctx, guard, "limits.yaml", config)
//	if err != nil {
//		log.Fatal(err) // one line for each error in the file: limits.yaml:7: ...
//	}
//	http.ListenAndServe(":8080", guard.Middleware(mux))
//
// The file is YAML:
//
//	exempt: 10.0.0.0/8          # no limit applies to these clients
//	skip: [/healthz, /static/]  # no limit applies to these paths
//	ignore-case: false          # /search and /SEARCH are two paths
//	limits:
//	  per-second:               # name of a limit
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
// A request passes if all limits that apply to it allow it. If one call cannot check all limits
// (see package httplimit), they are checked in the order of the file. So put the limit first that
// refuses most requests. A limit has these fields. key and rate are required. A list with one value
// can be written as this value.
//
//   - key: requests with the same key share the rate. The keys address, path, route and header NAME
//     are those of package httplimit. Config.Keys has further keys of the program. The key "all"
//     means that all requests share one rate. "A or B" is A, or B for a request that has no A. A
//     list joins keys: requests share the rate if each key in the list is the same. The limit does
//     not apply to a request that has no key, for example without the header field. In a list, a
//     missing key counts as empty: the limit applies unless the request has none of the keys in the
//     list.
//   - rate: in the format of rratelimiter.ParseRate: 100/s, 5/250ms, 1000/h, 5/week. 0/s refuses
//     every request. The suffix "per client" is an error. A month and a year have no fixed length,
//     so 20000/month and 5/year are quotas. It cannot be combined with quota.
//   - plans: other rates, by the value of a header field: "plans: {header: X-Plan, rates: {pro:
//     600/m, internal: unlimited}}". Requests without one of these values have the field rate. The
//     rate belongs to the key of a request: all requests with the same key should have the same
//     value. Clients can send any header field, so a gateway or a middleware before the guard must
//     set this one. It cannot be combined with quota.
//   - quota: instead of a rate, permits for a whole day, week, month or year of the calendar:
//     1000/day, 20000/month, at most 9007199254740991 (2^53 - 1). They return together at its end,
//     at midnight by time-zone (default: UTC), such as Europe/Berlin. A week begins on the weekday
//     from (default: monday), a month on the day from (default: 1), such as a billing date, and a
//     year with the month from (default: january). classic.Quota in the root of the module counts
//     it. It cannot be combined with rate, plans or lease. It cannot be combined with both
//     cost-after and penalty.
//   - cost: the number of permits that each request takes: from 1 (the default) to the permits of
//     each rate. With cost-after it can be 0: the request then passes while a permit is free.
//   - cost-after: the name of a field in the header of the response, such as X-Tokens-Used, that
//     has the cost of the request: see httplimit.Limit.CostAfter. The request takes the field cost
//     before. This stays its cost if the response has no such field, or no whole number in it, and
//     the handler has not told more by httplimit.Charge. It cannot be combined with both quota and
//     penalty.
//   - paths: the limit applies to these paths, with or without a final slash. If a path in the file
//     ends with a slash, the limit also applies to all paths below it. It applies to all spellings:
//     if servers can read several paths in the path of a request, such as "/x/..;/search", to each
//     of them (see httplimit.Guard). Default: all paths.
//   - methods: the limit applies to these methods. GET includes HEAD, as in http.ServeMux. Default:
//     all methods.
//   - hosts: the limit applies to requests for these hosts: shop.example.com, without a port, or
//     *.example.com for all names below. Clients choose the host: use it only if the server refuses
//     requests for others. Default: all hosts.
//   - lease: permits are taken ahead of demand for up to this time, and requests decided from
//     memory, as with rratelimiter.WithLease: at most a tenth of the interval of each rate.
//     It cannot be combined with quota. Default: none.
//   - penalty: after the limit has refused a key, the key stays refused for this time, such as 10m,
//     as with httplimit.Limit.Penalty, which says what it means beside lease and shadow. A request
//     with another plan has the same penalty, unless its rate is unlimited. It cannot be
//     combined with both quota and cost-after. Default: none.
//   - shadow: true lets the limit count what it would refuse, and refuse nothing, as with
//     httplimit.Limit.Shadow.
//   - exempt: the limit does not apply to clients with these addresses or networks. Config.Addr
//     finds the address of a client. A request whose client is not known is not exempt.
//
// No limit applies to the paths in skip, which are written as those of a limit. If servers can read
// several paths in the path of a request, it must be so for each of them.
//
// If ignore-case is true, upper and lower case make no difference in paths, in the fields paths and
// skip and the key path. Set it if the servers ignore case. Default: false.
//
// The name of a limit has 1 to 64 letters, digits and characters of "_.-". The first character is a
// letter or a digit. The name is a part of the limiters' names in Redis, as in httplimit.Per:
// limits with the same name and key use the same limiter, in all processes and services on one
// Redis.
//
// Beside limits, or instead of it, a file can have the section domains: limits for Envoy, which the
// module envoylimit and the command rrl rls serve. docs/guide/serve-envoy.md in the root of the
// module describes it. A file that begins with "domain:" has the format of envoyproxy/ratelimit,
// and docs/guide/from-envoyproxy-ratelimit.md says what of it works.
//
// In the place of a file, Watch, WatchDomains and Load take a folder: they read its files whose
// names end with .yaml or .yml. Each limit and each domain is in one of them.
package rules

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/keys"
)

// rules.go makes the limits of a guard from a file, and reads the file again when it changes.
// sources.go reads files, parse.go parses them, domains.go their section domains, and envoyproxy.go
// those of envoyproxy/ratelimit. format.go writes domains.

// A Config has what limits need in addition to their file.
type Config struct {
	// Client makes the limiters. It must not be nil.
	Client *rratelimiter.Client
	// Redis counts the limits with a quota. nil means the Redis of Client.
	Redis rratelimiter.Redis
	// Addr finds the address of a request's client, for the key address and for exempt.
	Addr httplimit.ClientAddr
	// Keys has the keys of the program, such as the user or the tenant. Each entry maps the word
	// that the file uses to the key. If the word is address, path, route, all, or header with a
	// name, it overrides the built-in key with this word.
	Keys map[string]httplimit.Key
	// Every is the time between two reads of the file; 0 means 2 s.
	Every time.Duration
	// Logger gets one line when new content is in force or has errors, and one line when the file
	// cannot be read. nil means slog.Default().
	Logger *slog.Logger
}

// Watch sets the limits of a guard from a file and returns. In the background it sets them again
// when the file changes, until ctx ends. If the file has errors or cannot be read at the time of
// the call, Watch only returns the error: Faults, or the error of os.ReadFile.
//
// Watch reads the file every Config.Every. New content is in force after two reads have returned
// the same content, because the first read may return a file that is not completely written. By
// default this is 2 to 4 s after a change. If the new file has errors or cannot be read, the limits
// do not change, and the error is logged. Either the old or the new limits decide on each request.
// A request that began before the change keeps the old limits, also for the permits that it gives
// back after its response. If the rate of a limit changes, earlier grants still count. While
// processes on one Redis have different files, each process sets the rates of its own file again
// and again.
func Watch(ctx context.Context, guard *httplimit.Guard, file string, c Config) error {
	return c.watch(ctx, file, func(sources []source) error {
		limits, err := c.limits(file, sources, c.words())
		if err == nil {
			err = c.trusts()
		}
		if err == nil {
			guard.SetLimits(c.build(limits)...)
		}
		return err
	})
}

// WatchDomains is Watch for the section domains of a file, which package envoylimit serves: it
// calls set with the domains instead of setting the limits of a guard. Of the Config it needs only
// Keys, for the section limits, Every and Logger; with a Client, it checks the rates and leases
// with the options of that.
//
//	err := rules.WatchDomains(ctx, "limits.yaml", rules.Config{}, service.SetDomains)
func WatchDomains(ctx context.Context, file string, c Config, set func([]Domain)) error {
	return c.watch(ctx, file, func(sources []source) error {
		f, err := c.parse(sources, c.words())
		if err == nil && f.Domains == nil {
			err = Faults{{file, 1, noDomains}}
		}
		if err == nil {
			set(f.Domains)
		}
		return err
	})
}

// watch calls set with the content of a file or a folder, now and, in the background, whenever the
// content has changed.
func (c Config) watch(ctx context.Context, file string, set func([]source) error) error {
	sources, err := read(file)
	if err != nil {
		return err
	}
	if err := set(sources); err != nil {
		return err
	}
	go c.follow(ctx, file, sources, set)
	return nil
}

// follow calls set whenever there is new content. last is the content that watch has read.
func (c Config) follow(ctx context.Context, file string, last []source, set func([]source) error) {
	every, logger := c.Every, c.Logger
	if every <= 0 {
		every = 2 * time.Second
	}
	if logger == nil {
		logger = slog.Default()
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var changed []source // new content that was read once; nil: none
	problem := ""        // error of the last read
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		sources, err := read(file)
		if err != nil {
			if err.Error() != problem {
				problem = err.Error()
				logger.ErrorContext(
					ctx, "the file of rules cannot be read, and its last rules stay in force", "file", file, "error", err,
				)
			}
			continue
		}
		problem = ""
		if slices.Equal(sources, last) {
			changed = nil
			continue
		}
		if changed == nil || !slices.Equal(sources, changed) {
			changed = sources
			continue
		}
		last, changed = sources, nil
		if err := set(sources); err != nil {
			for fault := range strings.SplitSeq(err.Error(), "\n") {
				logger.ErrorContext(ctx, "the file of rules has faults; the previous rules stay in force", "error", fault)
			}
			continue
		}
		logger.InfoContext(ctx, "new rules are in force", "file", file)
	}
}

// trusts returns an error if Addr.Trusted has a network with which Addr panics.
func (c Config) trusts() error {
	for _, n := range c.Addr.Trusted {
		if _, ok := keys.Network(n); !ok {
			return fmt.Errorf("%w: Addr.Trusted: %v has IPv4 and IPv6 addresses; write an IPv4 network as 10.0.0.0/8",
				rratelimiter.ErrInvalidOption, n)
		}
	}
	return nil
}

// words returns the words for the keys of the program.
func (c Config) words() []string { return slices.Sorted(maps.Keys(c.Keys)) }

// build makes the limits of a guard from the limits of a file.
func (c Config) build(limits []Limit) []httplimit.Limit {
	all := make([]httplimit.Limit, len(limits))
	for i, l := range limits {
		limitOf := c.rated
		if l.Quota.Period != "" {
			limitOf = c.quota
		}
		limit := limitOf(l)
		if l.Cost != 1 {
			limit = limit.Cost(func(*http.Request) int64 { return l.Cost })
		}
		if l.CostAfter != "" {
			limit = limit.CostAfter(l.costAfter)
		}
		if l.Penalty > 0 {
			limit = limit.Penalty(c.Client, l.Penalty)
		}
		if l.Shadow {
			limit = limit.Shadow()
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

// costAfter returns the cost of a request that its response has told; -1 if that has none.
func (l Limit) costAfter(_ int, h http.Header) int64 {
	if cost, err := strconv.ParseInt(h.Get(l.CostAfter), 10, 64); err == nil {
		return max(0, cost)
	}
	return -1
}

// rated makes a limit with a rate.
func (c Config) rated(l Limit) httplimit.Limit {
	var opts []rratelimiter.LimiterOption
	if l.Lease > 0 {
		opts = append(opts, rratelimiter.WithLease(l.Lease))
	}
	return httplimit.PerFunc(c.Client, l.Name, l.rate, c.key(l), opts...)
}

// rate returns the rate of a request.
func (l Limit) rate(r *http.Request) rratelimiter.Rate {
	if l.Plans.Header != "" {
		if rate, planned := l.Plans.Rates[r.Header.Get(l.Plans.Header)]; planned {
			return rate
		}
	}
	return l.Rate
}

// key makes the key of a limit from its words. The outer list has the keys to join. Each inner list
// has alternatives: the first one that a request has is used. nil is the key for all requests
// together.
func (c Config) key(l Limit) httplimit.Key {
	if l.key == nil {
		return nil
	}
	joined := make([]httplimit.Key, len(l.key))
	for i, alternatives := range l.key {
		firsts := make([]httplimit.Key, len(alternatives))
		for j, word := range alternatives {
			firsts[j] = c.keyOf(word, l.IgnoreCase)
		}
		joined[i] = httplimit.First(firsts...)
	}
	return httplimit.Join(joined...)
}

func (c Config) keyOf(word string, ignoreCase bool) httplimit.Key {
	if key := c.Keys[word]; key != nil {
		return key
	}
	switch {
	case word == "address":
		return c.Addr.Key
	case word == "path" && ignoreCase:
		return httplimit.PathIgnoreCase
	case word == "path":
		return httplimit.Path
	case word == "route":
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

// covers reports whether the limit applies to the method, the host and the path of a request. The
// guard asks once for each path that servers can read in the path of the request.
func (l Limit) covers(r *http.Request) bool {
	method := r.Method
	if method == http.MethodHead && !slices.Contains(l.Methods, method) {
		method = http.MethodGet
	}
	return (l.Methods == nil || slices.Contains(l.Methods, method)) &&
		(l.Hosts == nil || l.serves(hostOf(r))) &&
		(l.Paths == nil || l.in(l.Paths, r)) && !l.in(l.Skip, r)
}

// in reports whether the path of a request is in a list of paths.
func (l Limit) in(paths []string, r *http.Request) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return l.within(r.URL.Path, p) })
}

// hostOf returns the name of the host that a request is for, in lower case.
func hostOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil { // without a port
		host = r.Host
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// serves reports whether one of the hosts of the limit, which may begin with "*.", stands for a
// host.
func (l Limit) serves(host string) bool {
	return slices.ContainsFunc(l.Hosts, func(pattern string) bool {
		if domain, any := strings.CutPrefix(pattern, "*"); any {
			return strings.HasSuffix(host, domain)
		}
		return host == pattern
	})
}

// within reports whether a path is p, with or without a final slash, or is below p, if p ends with
// a slash.
func (l Limit) within(asked, p string) bool {
	if l.IgnoreCase {
		asked, p = strings.ToLower(strings.ToUpper(asked)), strings.ToLower(strings.ToUpper(p))
	}
	return strings.TrimSuffix(asked, "/") == strings.TrimSuffix(p, "/") ||
		strings.HasSuffix(p, "/") && strings.HasPrefix(asked, p)
}
