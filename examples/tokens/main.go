// Command tokens limits what tenants use of a language model, a fake one, by a gateway in front of
// it. It prints what a client of the gateway sees. In the folder examples:
//
//	go run ./tokens
//
// That needs no Redis, and a minute takes no time. With -redis redis://localhost:6379 the limits
// are in that Redis, and a minute is 5 s.
//
// The gateway counts the tokens while an answer streams, whether they are free or not. So an answer
// that is longer than estimated is a debt, and later requests are refused until it is paid back.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func main() {
	server := flag.String("redis", "", "`URL` of Redis; without it, a server in this process")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *server); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, server string) error {
	s := &story{out: out}
	if server == "" {
		embedded := limittest.Start()
		defer embedded.Close()
		s.client, s.now, s.sleep, s.minute = embedded.Client(), embedded.Now, embedded.Advance, time.Minute
		return s.tell(ctx, "acme")
	}
	options, err := redis.ParseURL(server)
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()
	s.client, s.now, s.sleep, s.minute = rratelimiter.NewClient(rdb), time.Now, time.Sleep, 5*time.Second
	return s.tell(ctx, fmt.Sprint("acme-", os.Getpid(), "-", time.Now().Unix())) // a tenant that has used nothing
}

// A story is a client that asks a gateway, and prints what it sees.
type story struct {
	out    io.Writer
	client *rratelimiter.Client
	now    func() time.Time
	sleep  func(time.Duration)
	minute time.Duration

	began   time.Time
	gateway string // URL
	tokens  *rratelimiter.Limiter
	month   *classic.Quota
	before  count         // before the last request of a step
	after   time.Duration // Retry-After of the last refusal
}

// A count is the number of tokens that the limit of a minute and that of a month have counted.
type count struct{ minute, month int64 }

const (
	apiKey  = "Bearer of-acme"
	monthly = 3500 // tokens of a tenant
)

// A step is one or more requests of a story, with the same prompt.
type step struct {
	says  string
	waits bool // for the time in the last Retry-After
	times int
	words int
}

var steps = []step{
	{"A short answer. What was estimated, and not used, comes back:", false, 1, 60},
	{"A long answer. The estimate is too low, so the request passes:", false, 1, 2000},
	{"What was used beyond the limit is a debt, which two minutes pay back:", false, 1, 60},
	{"After that time:", true, 1, 60},
	{"Many short answers. There is a limit of requests, too:", false, 5, 10},
	{"After that time, the tokens of the month are used up:", true, 1, 1400},
	{"So the next request can pass in the next month:", false, 1, 60},
}

// tell tells the story of a tenant.
func (s *story) tell(ctx context.Context, tenant string) error {
	p := plan{month: monthly}
	p.requests = rratelimiter.Rate{Permits: 5, Interval: s.minute}
	p.tokens = rratelimiter.Rate{Permits: 1000, Interval: s.minute}
	s.began = s.now()
	s.tokens = s.client.RateLimiter("ratelimit:tenant=" + tenant + ":tokens")
	s.month = p.quota(s.client, "tenant="+tenant, s.now)

	interrupted := make(chan error, 1) // of the request that comes while the long answer streams
	model, stop, err := serve(fakeModel(func(sent int64) {
		if sent == 1500 {
			interrupted <- s.interrupt(ctx, sent)
		}
	}))
	if err != nil {
		return err
	}
	defer stop()
	guard := p.guard(s.client, s.now)
	guard.Policy = &httplimit.Policy{Bound: 10 * time.Second} // more than a real gateway waits for Redis
	if s.gateway, stop, err = serve(gateway(guard, model, map[string]string{apiKey: tenant})); err != nil {
		return err
	}
	defer stop()

	fmt.Fprintf(s.out, "A tenant has 5 requests and 1,000 tokens a minute (here: %v), and 3,500 tokens a month.\n", s.minute)
	for _, step := range steps {
		if step.waits {
			s.sleep(s.after)
		}
		fmt.Fprintf(s.out, "\n%v  %s\n", s.now().Sub(s.began).Round(time.Second), step.says)
		for range step.times {
			if err := s.ask(ctx, step.words); err != nil {
				return err
			}
		}
		if step.words > 1500 {
			if err := <-interrupted; err != nil {
				return err
			}
		}
	}
	return nil
}

// interrupt asks while another answer streams, of which some tokens have been sent.
func (s *story) interrupt(ctx context.Context, sent int64) error {
	if err := s.await(ctx, s.before, tokensOf(prompt(2000))+sent); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "    %d tokens have been sent, and another request comes:\n", sent)
	return s.ask(ctx, 60)
}

func prompt(words int) string { return fmt.Sprintf("Write %d words.", words) }

// ask asks for an answer with so many words, and prints what comes back.
func (s *story) ask(ctx context.Context, words int) error {
	before, err := s.count(ctx)
	if err != nil {
		return err
	}
	s.before = before
	body, err := json.Marshal(chat{Messages: []message{{"user", prompt(words)}}})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.gateway, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", apiKey)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var total int64
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if e, ok := parse(lines.Text()); ok && e.Usage != nil {
			total = e.Usage.Total
		}
	}
	fmt.Fprintf(s.out, "    %s %s\n", prompt(words), answer.Status)
	fmt.Fprintf(s.out, "      RateLimit: %s\n", answer.Header.Get("RateLimit"))
	if after := answer.Header.Get("Retry-After"); after != "" {
		seconds, err := strconv.Atoi(after)
		s.after = time.Duration(seconds) * time.Second
		fmt.Fprintf(s.out, "      Retry-After: %s\n", after)
		return err
	}
	fmt.Fprintf(s.out, "      used: %d tokens\n", total)
	return s.await(ctx, before, total)
}

// count returns what the limits count now, up to the limit of the month.
func (s *story) count(ctx context.Context) (c count, err error) {
	state, err := s.tokens.State(ctx)
	if err != nil && !errors.Is(err, rratelimiter.ErrNotInitialized) { // it is, before the first request
		return c, err
	}
	left, err := s.month.Peek(ctx, 1)
	return count{state.Used, left.Limit - left.Remaining}, err
}

// await waits until the limits have counted tokens, which they do in the background. If a permit
// returns meanwhile, by the clock of a Redis, await returns after a second.
func (s *story) await(ctx context.Context, before count, tokens int64) error {
	want := count{before.minute + tokens, min(before.month+tokens, monthly)}
	for range 1000 {
		if now, err := s.count(ctx); err != nil || now == want {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// serve serves a handler at some port.
func serve(h http.Handler) (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return "", nil, err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.Serve(l) }()
	return "http://" + l.Addr().String(), func() { s.Close() }, nil
}
