package web

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/rrltest"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// startSite serves the page, and returns its address and its site.
func startSite(t *testing.T, s *redistest.Server, pattern string) (address string, w *Site) {
	t.Helper()
	return startSiteOf(t, s, pattern, "")
}

// startSiteOf serves the page of one client.
func startSiteOf(t *testing.T, s *redistest.Server, pattern, client string) (address string, w *Site) {
	t.Helper()
	server, err := connect.Open(t.Context(), connect.Flags{Address: s.URL()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w = New(ctx, server, client, pattern, []string{"limits.example.com"})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- w.Serve(listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return "http://" + listener.Addr().String(), w
}

func get(t *testing.T, ctx context.Context, address string) *http.Response {
	t.Helper()
	in, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(in)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	return answer
}

func body(t *testing.T, answer *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestThePageNeedsNothingFromElsewhere(t *testing.T) {
	address, _ := startSite(t, redistest.Embedded(t), "*")
	for path, kind := range map[string]string{
		"/":          "text/html",
		"/app.js":    "javascript",
		"/style.css": "text/css",
		"/icon.svg":  "image/svg",
	} {
		answer := get(t, t.Context(), address+path)
		text := strings.ReplaceAll(body(t, answer), "http://www.w3.org/2000/svg", "")
		if answer.StatusCode != http.StatusOK || !strings.Contains(answer.Header.Get("Content-Type"), kind) {
			t.Errorf("%s: %s %s", path, answer.Status, answer.Header.Get("Content-Type"))
		}
		if strings.Contains(text, "//") && (strings.Contains(text, "http:") || strings.Contains(text, "https:")) {
			t.Errorf("%s names another server", path)
		}
		if policy := answer.Header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'self';") {
			t.Errorf("%s: policy %q", path, policy)
		}
	}
	if answer := get(t, t.Context(), address+"/../web.go"); answer.StatusCode != http.StatusNotFound {
		t.Errorf("a file that is not the page's: %s", answer.Status)
	}
	answer, err := http.Post(address+"/limiters", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Body.Close(); answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", answer.Status)
	}
}

// A foreign page whose name was made to resolve to this machine is refused, by that name.
func TestThePageAnswersToItsOwnNamesAlone(t *testing.T) {
	address, _ := startSite(t, redistest.Embedded(t), "*")
	port := address[strings.LastIndex(address, ":"):]
	for host, want := range map[string]int{
		"127.0.0.1" + port: 200, "localhost" + port: 200, "LOCALHOST": 200, "localhost.:9000": 200, "[::1]" + port: 200,
		"127.0.0.1":          200,
		"limits.example.com": 200, "Limits.Example.com.:443": 200,
		"rebound.example.com" + port: 421, "localhost.example.com": 421, "127.0.0.1.example.com": 421,
		"192.0.2.1" + port: 421, "xlocalhost": 421,
	} {
		for _, path := range []string{"/", "/limiters", "/app.js"} {
			in, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			in.Host = host
			answer, err := http.DefaultClient.Do(in)
			if err != nil {
				t.Fatal(err)
			}
			if answer.Body.Close(); answer.StatusCode != want {
				t.Errorf("%s of %s: %s, want %d", path, host, answer.Status, want)
			}
		}
	}
}

func TestThePageListsLimiters(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		client := rrltest.Client(s.Client())
		for _, name := range []string{"api:orders", "api:mail", "other"} {
			if err := client.RateLimiter(name).SetRate(t.Context(), rratelimiter.PerMinute(10)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := client.RateLimiter("api:mail").TryAcquire(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		address, _ := startSite(t, s, "api:*")
		var found listed
		if err := json.NewDecoder(get(t, t.Context(), address+"/limiters").Body).Decode(&found); err != nil {
			t.Fatal(err)
		}
		if len(found.Limiters) != 2 || found.Limiters[0].Name != "api:mail" || found.Limiters[0].Available != 6 ||
			found.Limiters[0].Rate != "10/m" {
			t.Errorf("%+v", found)
		}
		if err := json.NewDecoder(get(t, t.Context(), address+"/limiters?search=ord").Body).Decode(&found); err != nil {
			t.Fatal(err)
		}
		if len(found.Limiters) != 1 || found.Limiters[0].Name != "api:orders" {
			t.Errorf("searched: %+v", found)
		}
	})
}

func TestThePageIsToldOfGrantsWhileSomebodyReads(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := rrltest.Client(s.Client()).RateLimiter("a b&c", rratelimiter.WithRate(rratelimiter.PerMinute(100)))
		if err := l.Acquire(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		address, w := startSite(t, s, "*")
		if answer := get(t, t.Context(), address+"/events"); answer.StatusCode != http.StatusBadRequest {
			t.Errorf("no name: %s", answer.Status)
		}
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		next := follow(t, ctx, address, url.Values{"name": {"a b&c", "nobody"}})
		granted := func(e event) (sum int64) {
			for _, second := range e.Grants {
				for _, n := range second.By {
					sum += n
				}
			}
			return sum
		}
		next("nobody", func(e event) bool { return e.Fault == "it has no rate" })
		next("a b&c", func(e event) bool {
			return e.Available == 90 && e.Permits == 100 && e.Consistent != nil && *e.Consistent && len(e.Free) > 0
		})
		if err := l.Acquire(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		next("a b&c", func(e event) bool { return e.Available == 85 && granted(e) >= 5 })
		leave()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			w.mu.Lock()
			open := len(w.open)
			w.mu.Unlock()
			if open == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d limiters are looked at for nobody", open)
			}
		}
	})
}

// follow returns a function that waits for an event of a limiter.
func follow(
	t *testing.T, ctx context.Context, address string, query url.Values,
) func(name string, fits func(event) bool) event {
	t.Helper()
	// an event that does not come ends the test
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	t.Cleanup(cancel)
	events := bufio.NewScanner(get(t, ctx, address+"/events?"+query.Encode()).Body)
	return func(name string, fits func(event) bool) event {
		t.Helper()
		for events.Scan() {
			text, data := strings.CutPrefix(events.Text(), "data: ")
			if !data {
				continue
			}
			var e event
			if err := json.Unmarshal([]byte(text), &e); err != nil {
				t.Fatal(err)
			}
			if e.Name == name && fits(e) {
				return e
			}
		}
		t.Fatalf("no more events: %v", events.Err())
		return event{}
	}
}

// read reads a response in JSON.
func read[T any](t *testing.T, address string) (answer T) {
	t.Helper()
	if err := json.NewDecoder(get(t, t.Context(), address).Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestThePageOffersTheClients(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var bob *rratelimiter.Limiter
		for i, id := range []string{"alice", "bob"} {
			bob = rrltest.Client(s.Client(), rratelimiter.WithClientID(id)).RateLimiter("each")
			if err := bob.SetRate(t.Context(),
				rratelimiter.Rate{Permits: 5, Interval: time.Hour, Type: rratelimiter.PerClient},
				rratelimiter.KeepState()); err != nil {
				t.Fatal(err)
			}
			if _, err := bob.TryAcquire(t.Context(), int64(i+1)); err != nil {
				t.Fatal(err)
			}
		}
		all := rrltest.Client(s.Client()).RateLimiter("all", rratelimiter.WithRate(rratelimiter.PerHour(9)))
		if _, err := all.TryAcquire(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		address, _ := startSite(t, s, "*")
		if got := read[clientList](t, address+"/clients?name=each"); !slices.Equal(
			got.Clients, []clientEntry{{"alice", "alice", 4}, {"bob", "bob", 3}},
		) ||
			got.More != 0 {
			t.Errorf("%+v", got)
		}
		next := follow(t, t.Context(), address, url.Values{"name": {"each"}})
		next("each", func(e event) bool {
			return e.Type == "PER_CLIENT" && e.Client == "" && e.Error == "" && e.Rate != ""
		})
		next = follow(t, t.Context(), address, url.Values{"name": {"each"}, "client": {"bob"}})
		next("each", func(e event) bool { return e.ClientText == "bob" && e.Available == 3 })
		if _, err := bob.TryAcquire(t.Context(), 1); err != nil { // a page shows the grants since it was opened
			t.Fatal(err)
		}
		next("each", func(e event) bool { return e.ClientText == "bob" && e.Available == 2 && len(e.Grants) > 0 })

		// rrl serve --client bob shows bob's permits of such limiters, and all grants of the
		// others.
		address, _ = startSiteOf(t, s, "*", "bob")
		next = follow(t, t.Context(), address, url.Values{"name": {"each", "all"}, "client": {"alice", ""}})
		next("each", func(e event) bool { return e.Client == "bob" && e.Available == 2 })
		next("all", func(e event) bool { return e.Client == "" && e.Available == 7 })
		if _, err := all.TryAcquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		next("all", func(e event) bool { return e.Client == "" && e.Available == 6 && len(e.Grants) > 0 })
	})
}

// Names are shown as in a terminal, and found by what is shown. The page can show each of them.
func TestThePageEscapesNames(t *testing.T) {
	s := redistest.Embedded(t)
	shown := map[string]string{"plain:é": "plain:é", "a\x1b[31m\u202eb": `"a\x1b[31m\u202eb"`, "raw\xff": `"raw\xff"`}
	for name := range shown {
		if err := rrltest.Client(s.Client()).RateLimiter(name).SetRate(t.Context(),
			rratelimiter.PerHour(3)); err != nil {
			t.Fatal(err)
		}
	}
	address, _ := startSite(t, s, "*")
	for _, text := range shown {
		found := read[listed](t, address+"/limiters?"+url.Values{"search": {text}}.Encode()).Limiters
		if len(found) != 1 || found[0].Text != text {
			t.Fatalf("searched for %s: %+v", text, found)
		}
		next := follow(t, t.Context(), address, url.Values{"name": {found[0].Name}})
		next(found[0].Name, func(e event) bool { return e.Text == text && e.Available == 3 })
	}
}

func TestThePageSaysSinceWhenRedisIsAway(t *testing.T) {
	s := redistest.Real(t)
	if err := rrltest.Client(s.Client()).RateLimiter("orders").SetRate(t.Context(),
		rratelimiter.PerSecond(3)); err != nil {
		t.Fatal(err)
	}
	address, w := startSite(t, s, "*")
	next := follow(t, t.Context(), address, url.Values{"name": {"orders"}})
	next("orders", func(e event) bool { return e.Available == 3 && e.Away == 0 })
	before := time.Now().UnixMilli()
	s.Kill()
	// without address and advice: the page has the one, and no use for the other
	const cause = "connection refused"
	since := next("orders", func(e event) bool { return e.Error == cause }).Away
	if since < before || since > time.Now().UnixMilli() {
		t.Errorf("away since %d, killed at %d", since, before)
	}
	if answer := read[failure](t, address+"/limiters"); answer.Away != since || answer.Error != cause ||
		answer.Where != w.server.Where {
		t.Errorf("the list says %+v, the event %d", answer, since)
	}
	next = follow(t, t.Context(), address, url.Values{"name": {"orders"}}) // a page that is opened later
	next("orders", func(e event) bool { return e.Away == since })
	// nothing is known of it, not even that it does not add up
	next = follow(t, t.Context(), address, url.Values{"name": {"unread"}})
	if e := next("unread", func(e event) bool { return e.Away == since }); e.Consistent != nil {
		t.Errorf("of a limiter that was never read: %+v, consistent %v", e, *e.Consistent)
	}
	next = follow(t, t.Context(), address, url.Values{"name": {"orders"}})
	s.Restart()
	var answer failure
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if answer = read[failure](t, address+"/limiters"); answer.Away == 0 && answer.Error == "" {
			break // a pool of connections that saw many dials fail tries again once a second
		}
	}
	if answer.Away != 0 || answer.Error != "" {
		t.Errorf("Redis is back: %+v", answer)
	}
	s.Kill()
	if again := next("orders", func(e event) bool { return e.Away > since }); again.Away == 0 {
		t.Errorf("away again: %+v", again)
	}
}

func TestMain(m *testing.M) { redistest.Main(m) }

// An outage that nobody looks at may have ended: the next one is another.
func TestAnOutageIsAsOldAsItIsKnown(t *testing.T) {
	w := &Site{}
	first := w.away()
	if again := w.away(); again != first {
		t.Errorf("away since %v, then since %v", first, again)
	}
	w.last = w.last.Add(-2 * time.Minute)
	if later := w.away(); later == first {
		t.Errorf("after two minutes without a look it is away since %v", later)
	}
}
