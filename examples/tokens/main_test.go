package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The command tells the story of testdata/story.txt, and so do other servers.
func TestTheStory(t *testing.T) {
	want, err := os.ReadFile("testdata/story.txt")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("command", func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out, ""); err != nil || out.String() != string(want) {
			t.Errorf("%v\n%s", err, &out)
		}
	})
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		var out bytes.Buffer
		var passed atomic.Int64 // ns
		s := &story{out: &out, minute: time.Minute}
		s.now = func() time.Time { return limittest.Epoch.Add(time.Duration(passed.Load())) }
		s.sleep = func(d time.Duration) { passed.Add(int64(d)) }
		s.client = rratelimiter.NewClient(
			server.Client(), rratelimiter.WithClock(s.now), rratelimiter.WithCallTimeout(10*time.Second),
		)
		if err := s.tell(t.Context(), "acme"); err != nil || out.String() != string(want) {
			t.Errorf("%v\n%s", err, &out)
		}
	})
}

// A desk is a gateway in front of a model, and its limits.
type desk struct {
	*testing.T
	*story
}

func newDesk(t *testing.T, model http.Handler) *desk {
	s := limittest.New(t)
	p := plan{requests: rratelimiter.PerMinute(5), tokens: rratelimiter.PerMinute(1000), month: monthly}
	d := &desk{t, &story{client: s.Client(), now: s.Now}}
	d.tokens = d.client.RateLimiter("ratelimit:tenant=acme:tokens")
	d.month = p.quota(d.client, "tenant=acme", s.Now)
	guard := p.guard(d.client, s.Now)
	guard.Policy = &httplimit.Policy{Bound: 10 * time.Second, Failure: httplimit.FailClosed}
	url, stop, err := serve(model)
	d.must(err)
	t.Cleanup(stop)
	d.gateway, stop, err = serve(gateway(guard, url, map[string]string{apiKey: "acme"}))
	d.must(err)
	t.Cleanup(stop)
	return d
}

func (d *desk) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

// post sends a body, and returns the response. The test closes its body.
func (d *desk) post(ctx context.Context, key, body string) *http.Response {
	d.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.gateway, strings.NewReader(body))
	d.must(err)
	r.Header.Set("Authorization", key)
	answer, err := http.DefaultClient.Do(r)
	d.must(err)
	d.Cleanup(func() { answer.Body.Close() })
	return answer
}

// counts checks what the limits count in the end.
func (d *desk) counts(want int64) {
	d.Helper()
	d.must(d.await(d.Context(), count{}, want))
	if got, err := d.count(d.Context()); got != (count{want, want}) || err != nil {
		d.Errorf("%+v tokens count, not %d: %v", got, want, err)
	}
}

func body(t *testing.T, words int) string {
	text, err := json.Marshal(chat{Messages: []message{{"user", prompt(words)}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// If the client leaves, the model ends, and what has been streamed until then counts.
func TestABrokenStreamCountsWhatItUsed(t *testing.T) {
	ended := make(chan struct{})
	d := newDesk(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fakeModel(func(sent int64) {
			if sent == 700 {
				<-r.Context().Done()
				close(ended)
				panic(http.ErrAbortHandler)
			}
		}).ServeHTTP(w, r)
	}))
	ctx, leave := context.WithCancel(t.Context())
	d.post(ctx, apiKey, body(t, 2000))
	want := tokensOf(prompt(2000)) + 700
	d.counts(want)
	leave()
	<-ended
	d.counts(want)
}

// What a model does not answer costs nothing.
func TestAnErrorOfTheModelCostsNothing(t *testing.T) {
	d := newDesk(t, fakeModel(func(int64) {}))
	answer := d.post(t.Context(), apiKey, `{"messages": [{"role": "user", "content": "Sing."}]}`)
	text, err := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "this model") || err != nil {
		t.Errorf("%s: %s, %v", answer.Status, text, err)
	}
	d.counts(0)
	if answer := d.post(t.Context(), "Bearer of-nobody", body(t, 1)); answer.StatusCode != http.StatusUnauthorized {
		t.Error(answer.Status)
	}
	if answer := d.post(t.Context(), apiKey, "Hello!"); answer.StatusCode != http.StatusBadRequest {
		t.Error(answer.Status)
	}
	d.counts(0)
}

func TestAWrongAddress(t *testing.T) {
	err := run(t.Context(), io.Discard, "http://localhost")
	if !strings.Contains(fmt.Sprint(err), "redis:") {
		t.Error(err)
	}
}
