package guide

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func byModelTokens(client *rratelimiter.Client, estimate func(*http.Request) int64) *httplimit.Guard {
	tenant := httplimit.By("tenant", tenantOf) // the owner of the API key, which was checked before
	guard := httplimit.New(
		httplimit.Per(client, "requests", rratelimiter.PerMinute(60), tenant),
		httplimit.Per(client, "tokens", rratelimiter.PerMinute(100_000), tenant, rratelimiter.WithMaxDebt(5)).
			Cost(estimate). // taken before
			CostAfter(nil). // counted in the end: what the handler charges
			Unit("tokens"), // for the field RateLimit-Policy
	)
	return guard
}

func byMonth(client *rratelimiter.Client, tenant httplimit.Key) *httplimit.Guard {
	month := httplimit.Limit(func(r *http.Request) httplimit.Claim {
		calendar := classic.Days{Period: classic.Monthly(1)}
		quota := classic.NewQuota(client.Redis(), "ratelimit:"+tenant(r)+":month", 5_000_000, calendar)
		return httplimit.Claim{Name: "month", Key: tenant(r), Limiter: quota}
	}).Cost(func(*http.Request) int64 { return 0 }).CostAfter(nil).Unit("tokens")
	return httplimit.New(month)
}

// A part of an answer: some text, or at the end the number of all tokens.
type part struct {
	text  string
	total int64
}

func stream(w http.ResponseWriter, r *http.Request, answer iter.Seq[part]) {
	used := int64(0)
	for part := range answer {
		n := int64(1) // a part has about one token
		if part.total > 0 {
			n = part.total - used // the last part tells the exact number, with the prompt
		}
		httplimit.Charge(r.Context(), n)
		used += n
		fmt.Fprint(w, part.text)
	}
}

// askModel asks for an answer of so many tokens, and returns the response.
func askModel(guard *httplimit.Guard, tokens int64) *http.Response {
	logger := slog.New(slog.DiscardHandler) // a debt above its bound is an error
	guard.Policy = &httplimit.Policy{Bound: patience, Failure: httplimit.FailClosed, Logger: logger}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("X-Tenant", "acme")
	w := httptest.NewRecorder()
	guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stream(w, r, slices.Values([]part{{text: "Hello, "}, {text: "world"}, {total: tokens}}))
	})).ServeHTTP(w, r)
	synctest.Wait() // for what is charged in the background
	return w.Result()
}

func TestALongAnswerIsADebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := limittest.NewRealTime(t).Client()
		guard := byModelTokens(client, func(*http.Request) int64 { return 500 })
		for i, c := range []struct {
			tokens, counts int64
			status         int
			after          time.Duration
		}{
			{300, 300, 200, 0}, // the rest of the estimate comes back
			{250_000, 250_300, 200, 0},
			{1, 250_300, 429, 2 * time.Minute},
			{2_000_000, 600_000, 200, 0}, // the bound of the debt
		} {
			answer := askModel(guard, c.tokens)
			state, err := client.RateLimiter("ratelimit:tenant=acme:tokens").State(t.Context())
			if answer.StatusCode != c.status || state.Used != c.counts || err != nil {
				t.Errorf("request %d: %s, %+v, %v", i, answer.Status, state, err)
			}
			if c.after > 0 {
				after, err := strconv.Atoi(answer.Header.Get("Retry-After"))
				field := answer.Header.Get("RateLimit")
				if time.Duration(after)*time.Second != c.after || field != `"tokens";r=0;t=120` || err != nil {
					t.Errorf("request %d can come back after %d s, %s: %v", i, after, field, err)
				}
				time.Sleep(c.after)
			}
		}
	})
}

func TestAMonthOfTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard := byMonth(limittest.NewRealTime(t).Client(), httplimit.By("tenant", tenantOf))
		for i, want := range []int{200, 200, 429} {
			if answer := askModel(guard, 4_000_000); answer.StatusCode != want {
				t.Errorf("request %d: %s", i, answer.Status)
			}
		}
		time.Sleep(31 * 24 * time.Hour)
		if answer := askModel(guard, 1); answer.StatusCode != 200 {
			t.Errorf("in the next month: %s", answer.Status)
		}
	})
}

func asWorker(
	ctx context.Context, requests, tokens *rratelimiter.Limiter, estimate int64,
	ask func(context.Context) (int64, error),
) (bool, error) {
	client := tokens.Client()
	grants, _, err := client.TakeAll(ctx, []int64{1, estimate}, requests, tokens)
	if err != nil || grants == nil {
		return false, err
	}
	used, err := ask(ctx)
	return true, errors.Join(err, grants.Settle(context.WithoutCancel(ctx), []int64{1, used}))
}

func TestAWorkerSettlesWhatItUsed(t *testing.T) {
	client := limittest.New(t).Client()
	requests := client.RateLimiter("requests", rratelimiter.WithRate(rratelimiter.PerMinute(60)))
	tokens := client.RateLimiter("tokens", rratelimiter.WithRate(rratelimiter.PerMinute(1000)))
	failure := errors.New("the model is away")
	for i, c := range []struct {
		uses, counts int64
		err          error
		asked        bool
	}{
		{0, 0, failure, true}, {300, 300, nil, true}, {2000, 2300, nil, true}, {1, 2300, nil, false},
	} {
		ask := func(context.Context) (int64, error) { return c.uses, c.err }
		asked, err := asWorker(t.Context(), requests, tokens, 500, ask)
		state, failed := tokens.State(t.Context())
		if asked != c.asked || !errors.Is(err, c.err) || state.Used != c.counts || failed != nil {
			t.Errorf("request %d: asked %t, %v; %+v, %v", i, asked, err, state, failed)
		}
	}
}
