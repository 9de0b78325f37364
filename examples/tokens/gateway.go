package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// gateway.go forwards requests to the model, as far as the limits of their tenant allow. All
// answers are streamed.

// A plan is what a tenant may use.
type plan struct {
	requests, tokens rratelimiter.Rate
	month            int64 // tokens in a calendar month
}

// guard returns the limits of the tenants: "ratelimit:tenant=NAME:requests", and so on.
func (p plan) guard(client *rratelimiter.Client, now func() time.Time) *httplimit.Guard {
	tenant := httplimit.By("tenant", func(r *http.Request) string { return askedBy(r).tenant })
	var month httplimit.Limit = func(r *http.Request) httplimit.Claim {
		key := tenant(r)
		return httplimit.Claim{Name: "month", Key: key, Limiter: p.quota(client, key, now)}
	}
	return httplimit.New(
		month.Cost(nothing).CostAfter(nil).Unit("tokens"), // passes if a token is left
		httplimit.Per(client, "requests", p.requests, tenant),
		httplimit.Per(client, "tokens", p.tokens, tenant).Cost(estimate).CostAfter(nil).Unit("tokens"),
	)
}

// quota returns the tokens of a month of a tenant.
func (p plan) quota(client *rratelimiter.Client, key string, now func() time.Time) *classic.Quota {
	months := classic.Days{Period: classic.Monthly(1)}
	return classic.NewQuota(client.Redis(), "ratelimit:"+key+":month", p.month, months, classic.WithClock(now))
}

func nothing(*http.Request) int64 { return 0 }

// typicalAnswer is the number of tokens of an answer, as far as one can know before.
const typicalAnswer = 100

// estimate returns about how many tokens a request will use.
func estimate(r *http.Request) int64 { return tokensOf(askedBy(r).chat.prompt()) + typicalAnswer }

// An asked is a request whose tenant is known, and whose body has been read.
type asked struct {
	tenant string
	chat   chat
}

type askedKey struct{}

func askedBy(r *http.Request) asked {
	a, _ := r.Context().Value(askedKey{}).(asked)
	return a
}

// longest is the size (bytes) of the longest body of a request, and of the longest event.
const longest = 1 << 20

// gateway returns a handler in front of a model with this URL. The tenants are by their API keys.
func gateway(guard *httplimit.Guard, model string, tenants map[string]string) http.Handler {
	limited := guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		forward(w, r, model)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tenant, known := tenants[r.Header.Get("Authorization")]
		if !known {
			http.Error(w, "unknown API key", http.StatusUnauthorized)
			return
		}
		a := asked{tenant: tenant}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, longest)).Decode(&a.chat); err != nil {
			http.Error(w, "the body is no chat", http.StatusBadRequest)
			return
		}
		a.chat.Stream, a.chat.StreamOptions.IncludeUsage = true, true // so that the model tells its usage
		limited.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), askedKey{}, a)))
	})
}

// forward sends a request to the model, and charges what the answer uses while it streams.
func forward(w http.ResponseWriter, r *http.Request, model string) {
	chat := askedBy(r).chat
	body, err := json.Marshal(chat)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	out, err := http.NewRequestWithContext(r.Context(), http.MethodPost, model, bytes.NewReader(body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	answer, err := http.DefaultClient.Do(out)
	if err != nil {
		http.Error(w, "the model does not answer", http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
	w.WriteHeader(answer.StatusCode)
	if answer.StatusCode != http.StatusOK { // nothing was used: the estimate comes back
		_, _ = io.Copy(w, answer.Body)
		return
	}
	// If the stream breaks off, what it has used until then counts.
	used := tokensOf(chat.prompt())
	httplimit.Charge(r.Context(), used)
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, longest)
	for lines.Scan() {
		e, ok := parse(lines.Text())
		switch {
		case ok && e.Usage != nil: // the exact number
			httplimit.Charge(r.Context(), e.Usage.Total-used)
		case ok:
			httplimit.Charge(r.Context(), 1) // about a token
			used++
		}
		fmt.Fprintln(w, lines.Text())
		_ = http.NewResponseController(w).Flush() // an error means that the client is gone
	}
}
