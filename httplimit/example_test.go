package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// ask sends a request to a handler and prints the response.
func ask(h http.Handler, path, user string) {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("X-User", user)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Print(w.Code)
	for _, name := range []string{"RateLimit", "Retry-After"} {
		if value := w.Header().Get(name); value != "" {
			fmt.Printf(", %s: %s", name, value)
		}
	}
	fmt.Println()
}

// awaitFree waits until permits that are given back in the background are free.
func awaitFree(limiter *rratelimiter.Limiter, permits int64) {
	for free := int64(0); free < permits; {
		free, _ = limiter.AvailablePermits(context.Background())
	}
}

// The examples run on an embedded server. Its clock stops until an example advances it. The
// examples wait longer for a reply than the 100 ms of the zero Policy. A real program has a redis
// client:
//
//	client := rratelimiter.NewClient(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))

var patient = &httplimit.Policy{Bound: 10 * time.Second}

func Example() {
	server := limittest.Start()
	defer server.Close()
	client := server.Client()

	addr := httplimit.ClientAddr{}
	guard := httplimit.New(
		httplimit.Per(client, "1s", rratelimiter.PerSecond(2), addr.Key),
		httplimit.Per(client, "1m", rratelimiter.PerMinute(3), addr.Key),
	)
	guard.Skip = []httplimit.Rule{httplimit.Paths("/healthz")}
	guard.Policy = patient
	h := guard.Middleware(http.NotFoundHandler())

	for range 3 {
		ask(h, "/orders", "")
	}
	ask(h, "/healthz", "")
	server.Advance(time.Second)
	ask(h, "/orders", "")
	ask(h, "/orders", "")
	// Output:
	// 404, RateLimit: "1s";r=1;t=1, "1m";r=2;t=60
	// 404, RateLimit: "1s";r=0;t=1, "1m";r=1;t=60
	// 429, RateLimit: "1s";r=0;t=1, Retry-After: 1
	// 404
	// 404, RateLimit: "1s";r=1;t=1, "1m";r=0;t=59
	// 429, RateLimit: "1m";r=0;t=59, Retry-After: 59
}

// A Guard may begin without limits and get them later. SetLimits replaces them, also while requests
// come.
func ExampleNew() {
	server := limittest.Start()
	defer server.Close()

	guard := httplimit.New()
	guard.Policy = patient
	h := guard.Middleware(http.NotFoundHandler())
	ask(h, "/", "")
	guard.SetLimits(httplimit.Per(server.Client(), "1m", rratelimiter.PerMinute(1), nil))
	ask(h, "/", "")
	ask(h, "/", "")
	// Output:
	// 404
	// 404, RateLimit: "1m";r=0;t=60
	// 429, RateLimit: "1m";r=0;t=60, Retry-After: 60
}

// A limit for each user and path: ten requests a minute.
func ExamplePer() {
	server := limittest.Start()
	defer server.Close()

	key := httplimit.Join(httplimit.Header("X-User"), httplimit.Path)
	guard := httplimit.New(httplimit.Per(server.Client(), "1m", rratelimiter.PerMinute(10), key))
	guard.Policy = patient
	h := guard.Middleware(http.NotFoundHandler())
	ask(h, "/orders", "ann")
	ask(h, "/orders", "ann")
	ask(h, "/orders", "bob")
	ask(h, "/mails", "ann")
	// Output:
	// 404, RateLimit: "1m";r=9;t=60
	// 404, RateLimit: "1m";r=8;t=60
	// 404, RateLimit: "1m";r=9;t=60
	// 404, RateLimit: "1m";r=9;t=60
}

// A Limit of the program's own: it applies only to uploads.
func ExampleNamed() {
	server := limittest.Start()
	defer server.Close()
	client := server.Client()

	guard := httplimit.New(func(r *http.Request) httplimit.Claim {
		if r.URL.Path != "/upload" {
			return httplimit.Claim{}
		}
		return httplimit.Named(client, "uploads", httplimit.Header("X-User")(r), rratelimiter.PerHour(5))
	})
	guard.Policy = patient
	h := guard.Middleware(http.NotFoundHandler())
	ask(h, "/upload", "ann")
	ask(h, "/orders", "ann")
	// Output:
	// 404, RateLimit: "uploads";r=4;t=3600
	// 404
}

// The header fields of a decision, without a Guard that writes the response.
func ExampleDecision_Describe() {
	server := limittest.Start()
	defer server.Close()

	claim := httplimit.Named(server.Client(), "uploads", "ann", rratelimiter.PerHour(1))
	for range 2 {
		d := patient.Decide(context.Background(), claim)
		h := http.Header{}
		d.Describe(h)
		fmt.Println(d.Outcome, h)
	}
	// Output:
	// allowed map[Ratelimit:["uploads";r=0;t=3600] Ratelimit-Policy:["uploads";q=1;w=3600]]
	// denied map[Ratelimit:["uploads";r=0;t=3600] Ratelimit-Policy:["uploads";q=1;w=3600] Retry-After:[3600]]
}

// In Guard.Skip, these rules exempt requests for the two paths, and requests that only read.
func ExamplePaths() {
	health, reads := httplimit.Paths("/healthz", "/static/"), httplimit.Methods(http.MethodGet)
	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodPost, "/static/a.css", nil),
		httptest.NewRequest(http.MethodPost, "/orders", nil),
	} {
		fmt.Println(r.URL.Path, health(r), reads(r))
	}
	// Output:
	// /static/a.css true false
	// /orders false false
}

func ExampleMethods() {
	reads := httplimit.Methods(http.MethodGet, http.MethodHead)
	fmt.Println(
		reads(httptest.NewRequest(http.MethodGet, "/", nil)), reads(httptest.NewRequest(http.MethodPost, "/", nil)),
	)
	// Output: true false
}

// A key from any part of a request. A request without a tenant has no key, so the limit does not
// apply to it.
func ExampleBy() {
	tenant := httplimit.By("tenant", func(r *http.Request) string { return r.URL.Query().Get("tenant") })
	fmt.Printf("%q\n", tenant(httptest.NewRequest(http.MethodGet, "/?tenant=shop", nil)))
	fmt.Printf("%q\n", tenant(httptest.NewRequest(http.MethodGet, "/", nil)))
	// Output:
	// "tenant=shop"
	// ""
}

func ExampleHeader() {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-User", "ann")
	fmt.Println(httplimit.Header("X-User")(r))
	// Output: X-User=ann
}

func ExampleJoin() {
	key := httplimit.Join(httplimit.ClientAddr{}.Key, httplimit.Path)
	r := httptest.NewRequest(http.MethodGet, "/orders", nil)
	r.RemoteAddr = "192.0.2.1:1234"
	fmt.Println(key(r))
	// Output: 192.0.2.1:/orders
}

// The user of a request, or its address if it has no user.
func ExampleFirst() {
	key := httplimit.First(httplimit.Header("X-User"), httplimit.ClientAddr{}.Key)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "192.0.2.1:1234"
	fmt.Println(key(r))
	r.Header.Set("X-User", "ann")
	fmt.Println(key(r))
	// Output:
	// 192.0.2.1
	// X-User=ann
}

// All spellings of a path are one key.
func ExamplePath() {
	for _, path := range []string{"/orders", "//orders", "/mails/../orders/", "/orders;x=1"} {
		fmt.Println(httplimit.Path(httptest.NewRequest(http.MethodGet, path, nil)))
	}
	// Output:
	// /orders
	// /orders
	// /orders
	// /orders
}

// For a server that does not distinguish upper and lower case in paths.
func ExamplePathIgnoreCase() {
	fmt.Println(httplimit.PathIgnoreCase(httptest.NewRequest(http.MethodGet, "/Orders", nil)))
	// Output: /orders
}

// The pattern of http.ServeMux, so that all orders share a limit. It is known in the handlers of
// the mux.
func ExampleRoute() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders/{id}", func(_ http.ResponseWriter, r *http.Request) { fmt.Println(httplimit.Route(r)) })
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/orders/7", nil))
	// Output: GET+/orders/<id>
}

// The client behind a proxy of the network 10.0.0.0/8.
func ExampleClientAddr() {
	addr := httplimit.ClientAddr{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "10.1.2.3:1234"
	r.Header.Set("X-Forwarded-For", "203.0.113.9, 192.0.2.1")
	fmt.Println(addr.Key(r))
	// Output: 192.0.2.1
}

// The rate of each user depends on the plan of the user. Users of a plan without a rate are not
// limited. The result of the function may change at any time.
func ExamplePerFunc() {
	server := limittest.Start()
	defer server.Close()

	plans := map[string]rratelimiter.Rate{"ann": rratelimiter.PerHour(1), "bob": rratelimiter.PerHour(1000)}
	user := func(r *http.Request) string { return r.Header.Get("X-User") }
	guard := httplimit.New(httplimit.PerFunc(server.Client(), "plan",
		func(r *http.Request) rratelimiter.Rate { return plans[user(r)] }, httplimit.By("user", user)))
	guard.Policy = patient
	h := guard.Middleware(http.NotFoundHandler())

	ask(h, "/", "ann")
	ask(h, "/", "ann")
	ask(h, "/", "bob")
	ask(h, "/", "eve")
	// Output:
	// 404, RateLimit: "plan";r=0;t=3600
	// 429, RateLimit: "plan";r=0;t=3600, Retry-After: 3600
	// 404, RateLimit: "plan";r=999;t=3600
	// 404
}

// Each user has a limiter. For requests without a user, each address has a limiter. Without OrElse,
// requests without a user would not be limited.
func ExampleLimit_OrElse() {
	server := limittest.Start()
	defer server.Close()
	client := server.Client()

	addr := httplimit.ClientAddr{}
	guard := httplimit.New(
		httplimit.Per(client, "user", rratelimiter.PerMinute(2), httplimit.Header("X-User")).
			OrElse(httplimit.Per(client, "anonymous", rratelimiter.PerMinute(1), addr.Key)),
	)
	guard.Policy = patient
	h := guard.Middleware(http.NotFoundHandler())

	ask(h, "/", "ann")
	ask(h, "/", "")
	ask(h, "/", "")
	// Output:
	// 404, RateLimit: "user";r=1;t=60
	// 404, RateLimit: "anonymous";r=0;t=60
	// 429, RateLimit: "anonymous";r=0;t=60, Retry-After: 60
}

// Only failed logins count. The permit of a successful login is given back in the background after
// the response.
func ExampleLimit_CountIf() {
	server := limittest.Start()
	defer server.Close()
	client := server.Client()

	guard := httplimit.New(
		httplimit.Per(client, "failed logins", rratelimiter.PerHour(1), httplimit.Header("X-User")).
			CountIf(func(status int, _ http.Header) bool { return status == http.StatusUnauthorized }),
	)
	guard.Policy = patient
	h := guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/right" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))

	ask(h, "/right", "ann")
	awaitFree(client.RateLimiter("ratelimit:X-User=ann:failed logins"), 1)
	ask(h, "/wrong", "ann")
	ask(h, "/right", "ann")
	// Output:
	// 200, RateLimit: "failed logins";r=0;t=3600
	// 401, RateLimit: "failed logins";r=0;t=3600
	// 429, RateLimit: "failed logins";r=0;t=3600, Retry-After: 3600
}

// A user who exceeds the limit is refused for ten minutes, although the limit would allow the next
// request after one.
func ExampleLimit_Penalty() {
	server := limittest.Start()
	defer server.Close()
	client := server.Client()

	guard := httplimit.New(
		httplimit.Per(client, "login", rratelimiter.PerMinute(1), httplimit.Header("X-User")).Penalty(client,
			10*time.Minute),
	)
	guard.Policy = patient
	h := guard.Middleware(http.NotFoundHandler())
	ask(h, "/", "ann")
	ask(h, "/", "ann")
	server.Advance(time.Minute)
	ask(h, "/", "ann")
	server.Advance(9 * time.Minute)
	ask(h, "/", "ann")
	// Output:
	// 404, RateLimit: "login";r=0;t=60
	// 429, RateLimit: "login";r=0;t=600, Retry-After: 600
	// 429, RateLimit: "login";r=0;t=540, Retry-After: 540
	// 404, RateLimit: "login";r=0;t=60
}

// A call of a language model first takes its highest possible cost in permits. Later it gives the
// unused permits back.
func ExampleLimit_CostAfter() {
	server := limittest.Start()
	defer server.Close()
	client := server.Client()

	guard := httplimit.New(
		httplimit.Per(client, "tokens", rratelimiter.PerMinute(5000), nil).
			Cost(func(*http.Request) int64 { return 4000 }).
			CostAfter(func(_ int, h http.Header) int64 {
				tokens, _ := strconv.ParseInt(h.Get("X-Tokens"), 10, 64)
				return tokens
			}),
	)
	guard.Policy = patient
	h := guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "It depends.")
		w.Header().Set("X-Tokens", "700")
	}))

	ask(h, "/", "ann")
	tokens := client.RateLimiter("ratelimit:tokens")
	awaitFree(tokens, 4300)
	ask(h, "/", "ann")
	awaitFree(tokens, 3600)
	// Output:
	// 200, RateLimit: "tokens";r=1000;t=60
	// 200, RateLimit: "tokens";r=300;t=60
}

// A limiter that other services also use, for example in Java, keeps its own name and rate.
// A router whose handlers return errors: the router turns an error into the response.
func ExampleGuard_Admit() {
	server := limittest.Start()
	defer server.Close()
	client := server.Client()
	guard := httplimit.New(httplimit.Per(client, "failed logins", rratelimiter.PerHour(2), httplimit.Header("X-User")).
		CountIf(func(status int, _ http.Header) bool { return status == http.StatusUnauthorized }))
	guard.Policy = patient

	type handler func(w http.ResponseWriter, r *http.Request) error
	errWrongPassword := errors.New("wrong password")
	middleware := func(next handler) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			d := guard.Admit(w, r)
			if !d.Outcome.Passed() {
				return // the response is written
			}
			status := http.StatusInternalServerError // if next panics
			defer func() { guard.ActivePolicy().Settle(r.Context(), d, status, w.Header()) }()
			switch err := next(w, r); {
			case errors.Is(err, errWrongPassword):
				status = http.StatusUnauthorized
			case err == nil:
				status = http.StatusOK
			}
			w.WriteHeader(status)
		}
	}
	login := middleware(func(_ http.ResponseWriter, r *http.Request) error {
		if r.URL.Path != "/right" {
			return errWrongPassword
		}
		return nil
	})

	ask(login, "/right", "ann")
	awaitFree(client.RateLimiter("ratelimit:X-User=ann:failed logins"), 2)
	ask(login, "/wrong", "ann")
	ask(login, "/wrong", "ann")
	ask(login, "/right", "ann")
	// Output:
	// 200, RateLimit: "failed logins";r=1;t=3600
	// 401, RateLimit: "failed logins";r=1;t=3600
	// 401, RateLimit: "failed logins";r=0;t=3600
	// 429, RateLimit: "failed logins";r=0;t=3600, Retry-After: 3600
}

func ExampleShared() {
	server := limittest.Start()
	defer server.Close()

	orders := server.Client().RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
	guard := httplimit.New(httplimit.Shared("orders", orders))
	guard.Policy = patient
	h := guard.Middleware(http.NotFoundHandler())
	ask(h, "/", "")
	ask(h, "/", "")
	// Output:
	// 404, RateLimit: "orders";r=0;t=1
	// 429, RateLimit: "orders";r=0;t=1, Retry-After: 1
}

// Here, requests are refused if the limits cannot be checked. Requests over the limit wait for at
// most 1 s.
func ExamplePolicy() {
	server := limittest.Start()
	defer server.Close()

	guard := httplimit.New(httplimit.Per(server.Client(), "1s", rratelimiter.PerSecond(10), nil))
	guard.Policy = &httplimit.Policy{Failure: httplimit.FailClosed, Bound: 50 * time.Millisecond, Wait: time.Second}
	h := guard.Middleware(http.NotFoundHandler())

	server.Fail("LOADING Redis is loading the dataset in memory")
	ask(h, "/", "")
	fmt.Println(guard.Policy.Count(httplimit.FailedClosed), httplimit.FailedClosed)
	// Output:
	// 503, Retry-After: 1
	// 1 failed closed
}

// All processes together send two requests a second to a service. The third request gets no permit
// before its context ends.
func ExampleTransport() {
	service := httptest.NewServer(http.NotFoundHandler())
	defer service.Close()
	server := limittest.Start()
	defer server.Close()

	api := &http.Client{Transport: &httplimit.Transport{
		Limiter: server.Client().RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerSecond(2))),
	}}
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, service.URL, nil)
		response, err := api.Do(r)
		if err != nil {
			fmt.Println(errors.Is(err, context.DeadlineExceeded))
		} else {
			fmt.Println(response.Status)
			response.Body.Close()
		}
		cancel()
	}
	// Output:
	// 404 Not Found
	// 404 Not Found
	// true
}
