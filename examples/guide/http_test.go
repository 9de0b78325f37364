package guide

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// patience is longer than the bound of a real program, so that a busy machine does not fail the
// tests.
const patience = 10 * time.Second

func guarded(client *rratelimiter.Client, mux *http.ServeMux) http.Handler {
	addr := httplimit.ClientAddr{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}} // our own proxies
	guard := httplimit.New(
		httplimit.Per(client, "1s", rratelimiter.PerSecond(2), addr.Key),
		httplimit.Per(client, "1m", rratelimiter.PerMinute(5), addr.Key),
	)
	guard.Skip = []httplimit.Rule{httplimit.Paths("/healthz")}
	guard.Policy = &httplimit.Policy{
		Failure: httplimit.FailOpen,
		Bound:   patience, // the longest time that a request waits for Redis
		OnDeny: func(ctx context.Context, d httplimit.Decision) {
			slog.InfoContext(ctx, "refused", "limits", d.Refused())
		},
	}
	handler := guard.Middleware(mux)
	return handler
}

// asked returns the response to a request of a client behind a proxy.
func asked(h http.Handler, path, client string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr = "10.0.0.1:1234"
	r.Header.Set("X-Forwarded-For", client)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func TestTheGuardRefusesWhatIsTooMuch(t *testing.T) {
	server := limittest.New(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	h := guarded(server.Client(), mux)
	for i, want := range []int{204, 204, 429} {
		if got := asked(h, "/", "203.0.113.7"); got.StatusCode != want {
			t.Errorf("request %d: %s", i, got.Status)
		} else if want == 429 && got.Header.Get("Retry-After") != "1" {
			t.Errorf("come back after %q", got.Header.Get("Retry-After"))
		}
	}
	if got := asked(h, "/", "203.0.113.8"); got.StatusCode != 204 {
		t.Errorf("another client: %s", got.Status)
	}
	if got := asked(h, "/healthz", "203.0.113.7"); got.StatusCode != 204 {
		t.Errorf("what is free: %s", got.Status)
	}
}

// limited is a handler without httplimit.
func limited(limiter *rratelimiter.Limiter, next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		result, err := limiter.Allow(r.Context(), 1)
		if err != nil && !errors.Is(err, rratelimiter.ErrExceedsRate) { // which means that the rate is 0
			slog.Error("the limit was not checked", "err", err) // Redis failed: the request passes
		} else if !result.Allowed {
			if seconds := math.Ceil(result.RetryAfter.Seconds()); seconds > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
			}
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// A handler without httplimit tells when to retry in whole seconds, rounded up.
func TestAHandlerWithoutAGuardSetsRetryAfter(t *testing.T) {
	server := limittest.New(t)
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	ask := func(limiter *rratelimiter.Limiter, status int, after string) {
		t.Helper()
		w := httptest.NewRecorder()
		limited(limiter, next)(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if got := w.Header().Get("Retry-After"); w.Code != status || got != after {
			t.Errorf("status %d, Retry-After %q, not %d, %q", w.Code, got, status, after)
		}
	}
	limiter := server.Client().RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	ask(limiter, http.StatusNoContent, "")
	server.Advance(2500 * time.Millisecond)
	ask(limiter, http.StatusTooManyRequests, "58") // it is free after 57.5 s
	off := server.Client().RateLimiter("off", rratelimiter.WithRate(rratelimiter.PerMinute(0)))
	ask(off, http.StatusTooManyRequests, "")
	ask(server.Client().RateLimiter("without a rate"), http.StatusNoContent, "")
}

var plans = map[string]rratelimiter.Rate{
	"free": rratelimiter.PerMinute(1),
	"paid": rratelimiter.PerMinute(1000),
}

func byPlan(client *rratelimiter.Client, planOf func(user string) string) *httplimit.Guard {
	user := func(r *http.Request) string { return r.Header.Get("X-User") }
	guard := httplimit.New(httplimit.PerFunc(client, "plan",
		func(r *http.Request) rratelimiter.Rate { return plans[planOf(user(r))] }, // not in the map: Unlimited
		httplimit.By("user", user),
	))
	return guard
}

func byHand(guard *httplimit.Guard) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !guard.Check(w, r) {
			return // the response is written
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func TestPlansHaveTheirRates(t *testing.T) {
	guard := byPlan(limittest.New(t).Client(), func(user string) string {
		return map[string]string{"ann": "free", "bob": "paid"}[user]
	})
	guard.Policy = &httplimit.Policy{Bound: patience}
	for i, c := range []struct {
		user string
		want int
	}{{"ann", 204}, {"ann", 429}, {"bob", 204}, {"bob", 204}, {"root", 204}} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-User", c.user)
		w := httptest.NewRecorder()
		if byHand(guard)(w, r); w.Code != c.want {
			t.Errorf("request %d, of %s: %d", i, c.user, w.Code)
		}
	}
}

func fromMemory(client *rratelimiter.Client, tenant httplimit.Key) *httplimit.Guard {
	guard := httplimit.New(httplimit.Per(client, "tenant", rratelimiter.PerMinute(60_000), tenant,
		rratelimiter.WithLease(time.Second), rratelimiter.WithDenyCache(10_000),
	))
	return guard
}

func onTrial(client *rratelimiter.Client, addr httplimit.ClientAddr) *httplimit.Guard {
	guard := httplimit.New(
		httplimit.Per(client, "1m", rratelimiter.PerMinute(200), addr.Key),
		httplimit.Per(client, "1m-new", rratelimiter.PerMinute(100), addr.Key).Shadow(),
	)
	guard.Policy = &httplimit.Policy{Jitter: 5 * time.Second}
	return guard
}

func withPenalty(client *rratelimiter.Client, addr httplimit.ClientAddr) *httplimit.Guard {
	login := httplimit.Per(client, "login", rratelimiter.PerMinute(5), addr.Key).Penalty(client, 15*time.Minute)
	return httplimit.New(login)
}

// The guards of the page are valid, and do what it says.
func TestGuardsOfThePage(t *testing.T) {
	server := limittest.New(t)
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	ask := func(guard *httplimit.Guard, times, status int) http.Header {
		t.Helper()
		var w *httptest.ResponseRecorder
		for range times {
			w = httptest.NewRecorder()
			guard.Middleware(ok).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		}
		if w.Code != status {
			t.Errorf("the last of %d requests: %d", times, w.Code)
		}
		return w.Header()
	}
	memory := fromMemory(server.Client(), func(*http.Request) string { return "ann" })
	memory.Policy = &httplimit.Policy{Bound: patience}
	if policy := ask(memory, 10, http.StatusNoContent).Get("RateLimit-Policy"); policy != `"tenant";q=60000;w=60` {
		t.Errorf("the policy is %s", policy)
	}

	trial := onTrial(server.Client(), httplimit.ClientAddr{})
	trial.Policy.Bound = patience
	ask(trial, 200, http.StatusNoContent)
	if n := trial.Policy.Count(httplimit.Shadowed); n != 100 {
		t.Errorf("%d requests would have been refused", n)
	}
	if after, err := strconv.Atoi(ask(trial, 1, http.StatusTooManyRequests).Get("Retry-After")); err != nil ||
		after < 60 || after > 65 {
		t.Errorf("come back after %d, %v", after, err)
	}

	penalty := withPenalty(server.Client(), httplimit.ClientAddr{})
	penalty.Policy = &httplimit.Policy{Bound: patience}
	ask(penalty, 5, http.StatusNoContent)
	if after := ask(penalty, 1, http.StatusTooManyRequests).Get("Retry-After"); after != "900" {
		t.Errorf("come back after %s", after)
	}

	tokens := byTokens(server.Client(), func(*http.Request) string { return "k" })
	// the test may end before the correction
	tokens.Policy = &httplimit.Policy{Bound: patience, Logger: slog.New(slog.DiscardHandler)}
	policy := ask(tokens, 1, http.StatusNoContent).Get("RateLimit-Policy")
	if policy != `"tokens";q=100000;qu="tokens";w=60` {
		t.Errorf("the policy is %s", policy)
	}
}

func byAPIKey(client *rratelimiter.Client) *httplimit.Guard {
	apiKey := httplimit.Header("X-API-Key") // verified before
	guard := httplimit.New(httplimit.Per(client, "key", rratelimiter.PerMinute(600), apiKey))
	return guard
}

func byAPIKeyOrAddress(client *rratelimiter.Client, apiKey httplimit.Key, addr httplimit.ClientAddr) *httplimit.Guard {
	guard := httplimit.New(
		httplimit.Per(client, "key", rratelimiter.PerMinute(600), apiKey).
			OrElse(httplimit.Per(client, "anonymous", rratelimiter.PerMinute(10), addr.Key)),
	)
	return guard
}

func TestRequestsWithoutAKeyHaveTheirOwnLimit(t *testing.T) {
	client := limittest.New(t).Client()
	served := func(guard *httplimit.Guard, key string) (n int) {
		guard.Policy = &httplimit.Policy{Bound: patience}
		for range 20 {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("X-API-Key", key)
			if guard.Check(httptest.NewRecorder(), r) {
				n++
			}
		}
		return n
	}
	either := byAPIKeyOrAddress(client, httplimit.Header("X-API-Key"), httplimit.ClientAddr{})
	if n := served(byAPIKey(client), ""); n != 20 {
		t.Errorf("%d without a key were served", n)
	}
	if with, without := served(either, "k"), served(either, ""); with != 20 || without != 10 {
		t.Errorf("%d with a key were served, %d without", with, without)
	}
}

func failedLogins(client *rratelimiter.Client, addr httplimit.ClientAddr) *httplimit.Guard {
	login := func(r *http.Request) string {
		if httplimit.Path(r) != "/login" {
			return ""
		}
		return addr.Key(r)
	}
	guard := httplimit.New(
		httplimit.Per(client, "failed logins", rratelimiter.PerHour(5), login).
			CountIf(func(status int, _ http.Header) bool { return status == http.StatusUnauthorized }),
	)
	return guard
}

func byTokens(client *rratelimiter.Client, apiKey httplimit.Key) *httplimit.Guard {
	guard := httplimit.New(
		httplimit.Per(client, "tokens", rratelimiter.PerMinute(100_000), apiKey).
			Cost(func(r *http.Request) int64 { return 4000 }). // an estimate
			CostAfter(func(_ int, h http.Header) int64 {
				tokens, _ := strconv.ParseInt(h.Get("X-Tokens"), 10, 64) // set by the handler
				return tokens
			}).
			Unit("tokens"), // for RateLimit-Policy: "tokens";q=100000;qu="tokens";w=60
	)
	return guard
}

func TestRequestsCountByTheirResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := limittest.NewRealTime(t).Client()
		served := func(guard *httplimit.Guard, path string, status int, tokens string) (n int) {
			guard.Policy = &httplimit.Policy{Bound: patience}
			h := guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				w.Header().Set("X-Tokens", tokens)
				n++
			}))
			for range 100 {
				r := httptest.NewRequest(http.MethodGet, path, nil)
				r.Header.Set("X-API-Key", "k")
				h.ServeHTTP(httptest.NewRecorder(), r)
				synctest.Wait()
			}
			return n
		}
		logins := failedLogins(client, httplimit.ClientAddr{})
		if right, wrong := served(logins, "/login/", 200, ""), served(logins, "/login;x", 401, ""); right != 100 ||
			wrong != 5 {
			t.Errorf("%d right logins were served, %d wrong ones", right, wrong)
		}
		if n := served(logins, "/other", 401, ""); n != 100 {
			t.Errorf("%d requests of another path were served", n)
		}
		// the 50th could need 4000
		if n := served(byTokens(client, httplimit.Header("X-API-Key")), "/", 200, "2000"); n != 49 {
			t.Errorf("%d calls of 2000 tokens were served", n)
		}
	})
}

func tenantOf(r *http.Request) string { return r.Header.Get("X-Tenant") }

func withRules(ctx context.Context, client *rratelimiter.Client, addr httplimit.ClientAddr) (*httplimit.Guard, error) {
	guard := httplimit.New()
	err := rules.Watch(ctx, guard, "limits.yaml", rules.Config{
		Client: client,
		Addr:   addr,
		Keys:   map[string]httplimit.Key{"tenant": httplimit.By("tenant", tenantOf)},
	})
	return guard, err
}

// rulesFolder has the file of rules that is on the page.
const rulesFolder = "../../httplimit/rules/testdata"

func TestTheRulesOnThePageAreKept(t *testing.T) {
	blocks := blocksOf(t, pages+"/guard-an-http-api.md", "yaml")
	if file := linesOf(t, rulesFolder+"/limits.yaml"); len(blocks) == 0 ||
		!slices.Equal(blocks[0], file[:len(file)-1]) {
		t.Error("the page has other rules than " + rulesFolder + "/limits.yaml")
	}
	t.Chdir(rulesFolder)
	guard, err := withRules(t.Context(), limittest.New(t).Client(), httplimit.ClientAddr{})
	if err != nil {
		t.Fatal(err)
	}
	guard.Policy = &httplimit.Policy{Bound: patience}
	for _, c := range []struct {
		addr string
		want int
	}{{"198.51.100.1", 10}, {"198.51.100.2", 10}, {"10.1.2.3", 20}} {
		served := 0
		for range 20 {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.RemoteAddr = c.addr + ":1234"
			if guard.Check(httptest.NewRecorder(), r) {
				served++
			}
		}
		if served != c.want {
			t.Errorf("%s: %d requests were served, not %d", c.addr, served, c.want)
		}
	}
}

func outgoing(client *rratelimiter.Client) *http.Client {
	api := &http.Client{
		Transport: &httplimit.Transport{
			Limiter: client.RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerSecond(10))),
		},
		Timeout: 30 * time.Second, // waiting for the permit included
	}
	return api
}

func TestOutgoingRequestsHaveALimit(t *testing.T) {
	service := httptest.NewServer(http.NotFoundHandler())
	defer service.Close()
	client := limittest.New(t).Client()
	for range 10 {
		response, err := outgoing(client).Get(service.URL)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	if free, err := client.RateLimiter("api").AvailablePermits(t.Context()); free != 0 || err != nil {
		t.Errorf("%d permits are free: %v", free, err)
	}
}
