package springgateway

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/maven"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// enough is for anything that a test awaits, on a busy machine.
const enough = 2 * time.Minute

// A route is one of application.yml.
type route struct {
	id        string
	bucket    classic.Spring
	requested int64 // tokens
}

var (
	rate   = route{"rate", classic.Spring{ReplenishRate: 2, BurstCapacity: 10}, 3}
	fast   = route{"fast", classic.Spring{ReplenishRate: 100, BurstCapacity: 200}, 1}
	single = route{"single", classic.Spring{ReplenishRate: 1, BurstCapacity: 1}, 1}
	minute = route{"minute", classic.Spring{ReplenishRate: 10, BurstCapacity: 600}, 60}
	large  = route{"large", classic.Spring{ReplenishRate: 1, BurstCapacity: 1<<31 - 1}, 1 << 29}
	query  = route{"query", classic.Spring{ReplenishRate: 1, BurstCapacity: 3}, 1}
)

// A server is a running gateway, with its Redis and the service behind it.
type server struct {
	redis  *redistest.Server
	rdb    *redis.Client
	url    string
	client http.Client
	served atomic.Int64 // requests that have reached the service
}

// start starts a gateway as application.yml says, with other ports. It ends with the test.
func start(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{redis: redistest.Real(t), client: http.Client{Timeout: enough}}
	s.rdb = s.redis.Client(redistest.NoDeadlines)
	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { s.served.Add(1) }))
	t.Cleanup(service.Close)

	host, port, _ := strings.Cut(s.redis.Addr, ":")
	cmd := exec.CommandContext(
		t.Context(), maven.Java(), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx256m",
		"-jar", filepath.Join(build(t, args...), "gateway.jar"),
		"--server.port=0", "--service="+service.URL, "--spring.data.redis.host="+host, "--spring.data.redis.port="+port,
	)
	stdin, err := cmd.StdinPipe() // the gateway ends with this process, however that ends
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	output := &maven.Tail{Max: 64 << 10}
	cmd.Stderr = output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ports, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			fmt.Fprintln(output, lines.Text())
			if port, ok := strings.CutPrefix(lines.Text(), "port "); ok {
				ports <- port
			}
		}
		_ = cmd.Wait() // usually killed
	}()
	t.Cleanup(func() {
		_ = stdin.Close() // fails if the gateway has ended
		<-ended
		if t.Failed() {
			t.Logf("the gateway wrote:\n%s", output)
		}
	})
	select {
	case port := <-ports:
		s.url = "http://localhost:" + port
	case <-ended:
		t.Fatal("the gateway has ended")
	case <-time.After(enough):
		t.Fatal("the gateway does not start")
	}
	return s
}

// An answer is what the gateway or this library says to a request.
type answer struct {
	granted bool
	left    int64 // tokens
}

// compare orders answers in some way.
func (a answer) compare(b answer) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }

// A request is one to the gateway (theirs) or to this library (ours).
type request struct {
	side   int
	charge int64 // tokens of a Charge; 0: the request may be refused
	answer
}

// A pair is the gateway and this library at one bucket.
type pair struct {
	*testing.T
	*server
	route
	user    string // the gateway's client sends it as a header field and as a query parameter
	limiter *classic.Limiter
	times   *redistest.Recording // of the times that both sides store
	before  int64                // served before the first request
}

// pair makes a pair for a user, who has the key at the gateway.
func (s *server) pair(t *testing.T, r route, user, key string) *pair {
	t.Helper()
	id := r.id + "." + key
	return &pair{
		T: t, server: s, route: r, user: user, before: s.served.Load(),
		limiter: classic.NewSpringBucket(s.rdb, id, r.bucket, classic.WithCallTimeout(enough)),
		times: s.redis.Monitor(func(c redistest.Command) bool {
			return (c.Name() == "SET" || c.Name() == "SETEX") && c.Args[1] == keys(id)[1]
		}),
	}
}

// get sends a request to the gateway, and returns the response without its body.
func (p *pair) get(header http.Header) *http.Response {
	address := p.url + "/" + p.id + "?user=" + url.QueryEscape(p.user)
	request, err := http.NewRequestWithContext(p.Context(), http.MethodGet, address, nil)
	if err == nil {
		request.Header = header
		var response *http.Response
		if response, err = p.client.Do(request); err == nil {
			_, _ = io.Copy(io.Discard, response.Body) // keeps the connection
			_ = response.Body.Close()
			return response
		}
	}
	p.Error(err)
	return &http.Response{}
}

// ask makes a request to a side.
func (p *pair) ask(side int) request {
	if side == ours {
		result, err := p.limiter.Allow(p.Context(), p.requested)
		if err != nil {
			p.Error(err)
		}
		return request{ours, 0, answer{result.Allowed, result.Remaining}}
	}
	response := p.get(http.Header{"X-User": {p.user}})
	var numbers [4]int64
	for i, name := range []string{"Replenish-Rate", "Burst-Capacity", "Requested-Tokens", "Remaining"} {
		var err error
		if numbers[i], err = strconv.ParseInt(response.Header.Get("X-RateLimit-"+name), 10, 64); err != nil {
			p.Errorf("the gateway answers %s, %v", response.Status, response.Header)
		}
	}
	bucket := classic.Spring{ReplenishRate: float64(numbers[0]), BurstCapacity: numbers[1]}
	if bucket != p.bucket || numbers[2] != p.requested {
		p.Errorf("the gateway has %+v, and takes %d tokens", bucket, numbers[2])
	}
	granted := response.StatusCode == http.StatusOK
	if !granted && response.StatusCode != http.StatusTooManyRequests {
		p.Errorf("the gateway answers %s", response.Status)
	}
	return request{theirs, 0, answer{granted, numbers[3]}}
}

// inTurn asks the gateway and this library in turn, at least n times and for a time.
func (p *pair) inTurn(n int, lasts time.Duration) (all []request) {
	all = append(all, p.ask(theirs)) // the gateway's first answer can take seconds
	for began := time.Now(); len(all) < n || time.Since(began) < lasts; {
		all = append(all, p.ask([]int{theirs, ours}[len(all)%2]))
	}
	return all
}

// together has clients of both sides ask at the same time.
func (p *pair) together(clients int, lasts time.Duration) (all []request) {
	var group sync.WaitGroup
	var mu sync.Mutex // guards all
	for i := range clients {
		group.Go(func() {
			for began := time.Now(); time.Since(began) < lasts; {
				r := p.ask([]int{theirs, ours}[i%2])
				mu.Lock()
				all = append(all, r)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return all
}

// seconds returns the times that both sides have stored, one a request, in order. Each is one by
// the server's clock after the request before.
func (p *pair) seconds() (all []int64) {
	p.Helper()
	var before time.Time
	for _, c := range p.times.Stop() {
		value := c.Args[2] // SET key value EX ttl
		if c.Name() == "SETEX" {
			value = c.Args[3] // SETEX key ttl value
		}
		second, err := strconv.ParseInt(value, 10, 64)
		if err != nil || second < before.Unix() || second > c.Time.Unix() {
			p.Fatalf("a request between %v and %v stores %q", before, c.Time, c.Args)
		}
		all, before = append(all, second), c.Time
	}
	return all
}

// judge compares the requests with those to one bucket in a plain model, at the seconds that are
// stored: each is granted or refused as there, with as many tokens left. The order of requests that
// came at the same time is not known, so their sorted answers are compared. Each request that the
// gateway granted has reached the service, and no other.
func (p *pair) judge(requests []request, inOrder bool) {
	p.Helper()
	seconds := p.seconds()
	if len(seconds) != len(requests) {
		p.Fatalf("%s: %d requests, of which %d came to the bucket", p.limiter.Name(), len(requests), len(seconds))
	}
	var got, want []answer
	var granted [2]int64
	tokens, last := p.bucket.BurstCapacity, seconds[0]
	for i, r := range requests {
		refill := max(0, seconds[i]-last) * int64(p.bucket.ReplenishRate)
		tokens, last = min(p.bucket.BurstCapacity, tokens+refill), seconds[i]
		expected := answer{granted: tokens >= p.requested}
		if r.charge > 0 {
			expected.granted = tokens > 0 // what Charge reports
			tokens -= r.charge
		} else if expected.granted {
			tokens -= p.requested
		}
		expected.left = tokens
		if r.side == ours {
			expected.left = max(0, tokens) // only the gateway tells a debt
		}
		if r.granted {
			granted[r.side]++
		}
		got, want = append(got, r.answer), append(want, expected)
	}
	if !inOrder {
		slices.SortFunc(got, answer.compare)
		slices.SortFunc(want, answer.compare)
	}
	for i := range got {
		if got[i] != want[i] {
			p.Fatalf("%s: answer %d of %d is %+v, not %+v", p.limiter.Name(), i, len(got), got[i], want[i])
		}
	}
	if served := p.served.Load() - p.before; served != granted[theirs] {
		p.Errorf("%d requests have reached the service; the gateway granted %d", served, granted[theirs])
	}
	if granted[theirs]+granted[ours] == int64(len(requests)) {
		p.Error("no request is refused")
	}
	p.Logf("%s: %d requests in %d s, granted by the gateway %d, in Go %d", p.limiter.Name(), len(requests),
		last-seconds[0], granted[theirs], granted[ours])
}

// headerKeys are values of a header field, each with the key that the gateway makes of it.
var headerKeys = map[string]string{
	"ü":                      "\u00c3\u00bc",
	"\xfc":                   "ü",
	"\xff\x80":               "\u00ff\u0080",
	"日本 €":                   classic.SpringHeader("日本 €"),
	"😀":                      classic.SpringHeader("😀"),
	"":                       "",
	"{a}":                    "{a}",
	"{":                      "{",
	"}":                      "}",
	"a}{b":                   "a}{b",
	"a b":                    "a b",
	"a\tb":                   "a\tb",
	"a:b":                    "a:b",
	"a.b":                    "a.b",
	"a+b":                    "a+b",
	`a,b; c="d"`:             `a,b; c="d"`,
	`\x00\n%00\`:             `\x00\n%00\`,
	"%C3%BC":                 "%C3%BC",
	"*?[x]":                  "*?[x]",
	strings.Repeat("ö", 300): classic.SpringHeader(strings.Repeat("ö", 300)),
}

func TestRealGatewaysShareTheirBuckets(t *testing.T) {
	for name, args := range map[string][]string{"Spring Boot 3": nil, "Spring Boot 4": {"-Pboot4"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, args...)
			t.Run("rate", func(t *testing.T) {
				p := s.pair(t, rate, "alice", "alice")
				p.judge(p.inTurn(30, 2*time.Second), true)
			})
			t.Run("rate and burst of 1", func(t *testing.T) {
				p := s.pair(t, single, "alice", "alice")
				p.judge(p.inTurn(10, 2*time.Second), true)
			})
			t.Run("at the same time", func(t *testing.T) {
				p := s.pair(t, fast, "alice", "alice")
				p.judge(p.together(6, 2*time.Second), false)
			})
			t.Run("requested tokens", func(t *testing.T) {
				p := s.pair(t, minute, "alice", "alice")
				p.judge(p.inTurn(30, 0), true)
			})
			t.Run("large burst", func(t *testing.T) {
				p := s.pair(t, large, "alice", "alice")
				p.judge(p.inTurn(10, 0), true)
			})
			t.Run("debt", func(t *testing.T) {
				p := s.pair(t, fast, "bob", "bob")
				requests := p.inTurn(4, 0)
				const charge = 350
				result, err := p.limiter.Charge(t.Context(), charge)
				if err != nil {
					t.Fatal(err)
				}
				requests = append(requests, request{ours, charge, answer{result.Allowed, result.Remaining}})
				p.judge(append(requests, p.inTurn(4, 2*time.Second)...), true)
			})
			t.Run("keys of a header field", func(t *testing.T) {
				for user, key := range headerKeys {
					if classic.SpringHeader(user) != key {
						t.Errorf("SpringHeader makes %q of %q", classic.SpringHeader(user), user)
					}
					p := s.pair(t, minute, user, key)
					p.judge(p.inTurn(12, 0), true)
				}
			})
			t.Run("key of a query parameter", func(t *testing.T) {
				p := s.pair(t, query, "ü {€}", "ü {€}")
				p.judge(p.inTurn(12, 0), true)
			})
			t.Run("no key", func(t *testing.T) {
				p := s.pair(t, rate, "", "")
				if response := p.get(nil); response.StatusCode != http.StatusForbidden {
					t.Errorf("the gateway answers %s", response.Status)
				}
				if n := len(p.seconds()); n > 0 {
					t.Errorf("%d requests without a key came to a bucket", n)
				}
			})
		})
	}
}
