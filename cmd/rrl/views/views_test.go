//go:build views

package views

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/buildkite/terminal-to-html/v3"
	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

var update = flag.Bool("update", false, "write the pictures in docs/")

// warm is the time for which the limiters are used before the first check: with -update, until the
// charts are full.
func warm() time.Duration {
	if *update {
		return 2 * time.Minute
	}
	return 4 * time.Second
}

func TestMain(m *testing.M) { redistest.Main(m) }

// command builds rrl.
func command(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rrl")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// traffic uses some limiters until the test ends, as three Go processes and another client.
func traffic(t *testing.T, s *redistest.Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	rates := map[string]rratelimiter.Rate{
		"orders": rratelimiter.PerSecond(50), "api:search": rratelimiter.PerMinute(900),
		"payments": {Permits: 5, Interval: 250 * time.Millisecond}, "mail:outgoing": rratelimiter.PerHour(1000),
	}
	for process := range 3 {
		client := rratelimiter.NewClient(s.Client())
		for name, rate := range rates {
			l := client.RateLimiter(name, rratelimiter.WithRate(rate))
			if name == "mail:outgoing" && process > 0 {
				continue
			}
			for range 2 {
				running.Go(func() {
					for ctx.Err() == nil {
						if l.Acquire(ctx, 1+rand.Int64N(2)) == nil {
							pause := time.Duration(rand.Int64N(int64(150 * time.Millisecond)))
							if name == "mail:outgoing" {
								pause *= 20
							}
							sleep(ctx, pause)
						}
					}
				})
			}
		}
	}
	rdb := s.Client()
	running.Go(func() {
		for ctx.Err() == nil {
			stranger(ctx, rdb, "orders")
			sleep(ctx, time.Duration(40+rand.IntN(80))*time.Millisecond)
		}
	})
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// stranger takes two permits with a record that does not have the id of a Go client.
func stranger(ctx context.Context, rdb *redis.Client, name string) {
	id := make([]byte, 8)
	for i := range id {
		id[i] = byte(128 + rand.IntN(128))
	}
	member, err := rratelimiter.PackRecord(rratelimiter.Redisson317, id, 2)
	if err != nil {
		panic(err) // an id of eight bytes fits
	}
	take := redis.NewScript(`local free = tonumber(redis.call('GET', KEYS[1])) or 0
		if free < 2 then return 0 end
		redis.call('ZADD', KEYS[2], ARGV[1], ARGV[2])
		return redis.call('DECRBY', KEYS[1], 2)`)
	keys := []string{"{" + name + "}:value", "{" + name + "}:permits"}
	_ = take.Run(ctx, rdb, keys, time.Now().UnixMilli(), string(member)).Err() // ends with the test
}

// browser opens a headless Chromium.
func browser(t *testing.T, width, height int, dark bool) tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, chromedp.WindowSize(width, height), chromedp.Flag("hide-scrollbars", true),
		chromedp.Flag("blink-settings", fmt.Sprintf("preferredColorScheme=%d", map[bool]int{true: 0, false: 1}[dark])))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	return tab{t, ctx}
}

// serve runs rrl serve, and returns the address of its page.
func serve(t *testing.T, s *redistest.Server) string {
	t.Helper()
	page, _ := serving(t, s.URL())
	return page
}

// serving runs rrl serve for an address of Redis, and returns the address of its page and a
// function that ends it.
func serving(t *testing.T, redis string) (page string, stop func()) {
	t.Helper()
	cmd := exec.Command(command(t), "serve", "--listen", "127.0.0.1:0", "--redis", redis)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), stop
}

func keep(t *testing.T, name string, picture []byte) {
	t.Helper()
	if !*update {
		return
	}
	if err := os.WriteFile(filepath.Join("../../../docs", name), picture, 0o644); err != nil {
		t.Fatal(err)
	}
}

// A tab is a page in a browser.
type tab struct {
	t   *testing.T
	ctx context.Context
}

// do runs actions on the page.
func (b tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// text returns the result of a script on the page.
func (b tab) text(script string) string {
	b.t.Helper()
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("String("+script+")"))
	if err != nil {
		b.t.Fatalf("%s: %v", script, err)
	}
	return text
}

// until waits until a script on the page has the wanted result.
func (b tab) until(script, want string) {
	b.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		got := b.text(script)
		if strings.Contains(got, want) {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s is %q, not %q", script, got, want)
		}
	}
}

func (b tab) picture(take chromedp.Action[[]byte]) []byte {
	b.t.Helper()
	picture, err := chromedp.Run(b.ctx, take)
	if err != nil {
		b.t.Fatal(err)
	}
	return picture
}

func TestThePageShowsWhatHappens(t *testing.T) {
	s := redistest.Real(t)
	traffic(t, s)
	page := serve(t, s)
	for name, dark := range map[string]bool{"serve.png": false, "serve-dark.png": true} {
		b := browser(t, 1400, 1000, dark)
		b.do(chromedp.Navigate(page))
		b.until(`document.querySelectorAll(".card").length`, "4")
		time.Sleep(warm())
		all := func(what string) string {
			return `[...document.querySelectorAll("` + what + `")].map((e) => e.textContent).join()`
		}
		for _, want := range [][2]string{
			{all("#list .name"), "orders"}, {all("#list .name"), "mail:outgoing"}, {all(".card .rate"), "50/s"},
			{all(".card .rate"), "5/250ms"}, {all(".of"), "of 50 permits free"}, {all(".legend"), "Java or unknown"},
			{all(".legend"), "Go "}, {all("#live"), "live"}, {`document.querySelectorAll(".free .line").length`, "4"},
			{`document.querySelectorAll(".grants rect").length > 8`, "true"},
		} {
			b.until(want[0], want[1])
		}
		keep(t, name, b.picture(chromedp.FullScreenshot(100)))
	}
}

func TestThePageFindsShowsAndHides(t *testing.T) {
	s := redistest.Real(t)
	client := rratelimiter.NewClient(s.Client())
	odd := `<b>"x"</b> & co`
	for _, name := range []string{odd, "a", "b", "c", "d"} {
		if err := client.RateLimiter(name).SetRate(t.Context(), rratelimiter.PerSecond(3)); err != nil {
			t.Fatal(err)
		}
	}
	b := browser(t, 1000, 800, false)
	b.do(chromedp.Navigate(serve(t, s)))
	b.until(`document.querySelectorAll("#list li").length`, "5")
	b.do(chromedp.SendKeys("#search", "<b>"))
	b.until(`document.querySelectorAll("#list li").length`, "1")
	b.do(chromedp.Click("#list li button"))
	b.until(`document.querySelector(".card .of")?.textContent`, "of 3 permits free")
	for script, want := range map[string]string{
		`document.querySelector("#list .name").textContent`:              strconv.Quote(odd),
		`document.querySelector(".card .name").textContent`:              strconv.Quote(odd),
		`document.querySelectorAll("#list b, .card h2 b").length`:        "0",
		`decodeURIComponent(location.hash)`:                              "#" + odd,
		`document.querySelector("#list button").ariaPressed`:             "true",
		`getComputedStyle(document.querySelector(".card .tip")).display`: "none",
	} {
		if got := b.text(script); got != want {
			t.Errorf("%s is %q, not %q", script, got, want)
		}
	}
	b.until(`(() => {
		const chart = document.querySelector(".free"), box = chart.getBoundingClientRect();
		chart.dispatchEvent(new PointerEvent("pointermove", {clientX: box.right - 1, clientY: box.top + 9}));
		return document.querySelector(".tip").textContent;
	})()`, "3 free")
	b.do(chromedp.Click(".card .close"))
	b.until(`document.querySelectorAll(".card").length`, "0")
}

// A card stays until its user closes it, whatever is searched for; and a closed one does not come
// back.
func TestCardsStayAsTheyAreChosen(t *testing.T) {
	s := redistest.Real(t)
	client := rratelimiter.NewClient(s.Client())
	for _, name := range []string{"orders", "mail"} {
		if err := client.RateLimiter(name).SetRate(t.Context(), rratelimiter.PerSecond(3)); err != nil {
			t.Fatal(err)
		}
	}
	b := browser(t, 1000, 800, false)
	b.do(chromedp.Navigate(serve(t, s)))
	const cards, listed = `document.querySelectorAll(".card").length`, `document.querySelectorAll("#list li").length`
	b.until(cards, "2") // few limiters are shown at once
	b.do(chromedp.SendKeys("#search", "nothing"))
	b.until(listed, "0")
	b.until(cards, "2")
	b.do(chromedp.Click(".card .close"))
	b.until(cards, "1")
	b.do(chromedp.Click(".card .close"))
	b.until(cards, "0")
	b.text(`(search = document.getElementById("search"), search.value = "ord", search.dispatchEvent(new Event("input")))`)
	b.until(listed, "1")
	b.until(cards, "0")
	b.until(`document.getElementById("live").className`, "on")
}

// An exhausted limiter is marked, and the first one if the list is sorted by use.
func TestThePageSortsByUse(t *testing.T) {
	s := redistest.Real(t)
	for i, name := range []string{"a:free", "b:half", "c:exhausted", "d:little", "e:none"} {
		l := rratelimiter.NewClient(s.Client()).RateLimiter(name)
		if err := l.SetRate(t.Context(), rratelimiter.PerHour(10)); err != nil {
			t.Fatal(err)
		}
		if n := []int64{0, 5, 10, 2, 0}[i]; n > 0 {
			if _, err := l.TryAcquire(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}
	}
	b := browser(t, 1000, 800, false)
	page := serve(t, s)
	b.do(chromedp.Navigate(page + "/#c:exhausted"))
	names := `[...document.querySelectorAll("#list .name")].map((e) => e.textContent).join()`
	b.until(names, "a:free,b:half,c:exhausted,d:little,e:none")
	b.text(
		`(document.getElementById("sort").value = "use", document.getElementById("sort").dispatchEvent(new Event("change")))`,
	)
	const sorted = "c:exhausted,b:half,d:little,a:free,e:none"
	b.until(names, sorted)
	b.until(`document.querySelector("#list .exhausted .badge").textContent`, "exhausted")
	b.until(`document.querySelectorAll("#list .exhausted").length`, "1")
	b.until(`document.querySelector(".card.exhausted .badge")?.hidden`, "false")
	b.until(
		`["#list .exhausted", ".card.exhausted"].every((of) => getComputedStyle(document.querySelector(of + " .meter")).backgroundColor ===
		getComputedStyle(document.querySelector("#list .meter")).backgroundColor)`,
		"true",
	) // what is left of it is what is free
	b.until(`location.search + location.hash`, "?sort=use#c%3Aexhausted")
	b.do(chromedp.Navigate(page + "/?sort=use"))
	b.until(names, sorted)
}

// Names with control or bidirectional characters are shown with escapes.
func TestThePageEscapesNames(t *testing.T) {
	s := redistest.Real(t)
	const name, shown = "a\x1b[31m\u202eb", `"a\x1b[31m\u202eb"`
	if err := rratelimiter.NewClient(s.Client()).RateLimiter(name).SetRate(t.Context(),
		rratelimiter.PerSecond(3)); err != nil {
		t.Fatal(err)
	}
	b := browser(t, 1000, 800, false)
	b.do(chromedp.Navigate(serve(t, s)))
	b.until(`document.querySelector(".card .of")?.textContent`, "of 3 permits free")
	for _, script := range []string{
		`document.querySelector(".card .name").textContent`, `document.querySelector("#list .name").textContent`,
		`document.querySelector("#list button").title`,
	} {
		b.until(script, shown)
	}
	b.until(`/[\x1b\u202e]/.test(document.documentElement.innerText)`, "false")
}

// The card of a PER_CLIENT limiter offers its clients, and a link has the chosen one.
func TestACardOffersTheClients(t *testing.T) {
	s := redistest.Real(t)
	for i, id := range []string{"alice", "bob@home"} {
		l := rratelimiter.NewClient(s.Client(), rratelimiter.WithClientID(id)).RateLimiter("each")
		rate := rratelimiter.Rate{Permits: 5, Interval: time.Hour, Type: rratelimiter.PerClient}
		if err := l.SetRate(t.Context(), rate, rratelimiter.KeepState()); err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryAcquire(t.Context(), int64(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	b := browser(t, 1000, 800, false)
	page := serve(t, s)
	b.do(chromedp.Navigate(page))
	b.until(
		`[...document.querySelectorAll(".whose option")].map((o) => o.textContent).join()`,
		"choose a client,alice – 4 free,bob@home – 3 free",
	)
	b.until(`document.querySelector(".note").textContent + document.querySelector(".note").className`,
		"choose one.note")
	b.text(
		`(whose = document.querySelector(".whose select"), whose.value = "bob@home", whose.dispatchEvent(new Event("change")))`,
	)
	b.until(
		`document.querySelector(".card .available").textContent + document.querySelector(".card .of").textContent`,
		"3of 5 permits free",
	)
	b.until(`location.hash`, "#each@bob%40home")
	b.do(chromedp.Navigate(page+"/#each@alice"), chromedp.Reload())
	b.until(`document.querySelector(".card .available")?.textContent`, "4")
	b.until(`document.querySelector(".whose select").value`, "alice")
}

// While Redis is away the page says so once, with the cause; old figures are dim, and the charts go
// on with a gap.
func TestThePageTellsSinceWhenRedisIsAway(t *testing.T) {
	s := redistest.Real(t)
	l := rratelimiter.NewClient(s.Client()).RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerHour(10)))
	if err := l.Acquire(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	page, stop := serving(t, s.URL())
	b := browser(t, 1000, 800, false)
	b.do(chromedp.Navigate(page + "/#orders"))
	const (
		dot   = `document.getElementById("live").className + ": " + document.getElementById("live").textContent`
		since = `[...document.querySelectorAll(".since")].map((e) => e.textContent).join("; ")`
		dim   = `["#list", ".card .figures", ".card figure"].map((what) => getComputedStyle(document.querySelector(what)).opacity).join()`
		// How far from the right edge the line of free permits ends, and the bars of grants: "now"
		// goes on without them.
		gap = `[...document.querySelectorAll(".card svg")].map((svg) => {
			const drawn = Math.max(...[...svg.querySelectorAll(".line, rect[fill]")].map((e) => e.getBoundingClientRect().right));
			return svg.querySelectorAll(".gap").length + (svg.getBoundingClientRect().right - drawn > 8 ? " behind" : " at the end");
		}).join()`
	)
	b.until(dot, "on: live")
	b.until(`document.querySelector(".card .available")?.textContent`, "6")
	b.until(gap, "0 at the end,")
	b.until(dim, "1,1,1")
	s.Kill()
	b.until(dot, "off: Redis away since ")
	if got := b.text(dot); !strings.HasSuffix(got, ": connection refused") || !strings.ContainsAny(got, "0123456789") {
		t.Errorf("no time or no cause in %q", got)
	}
	b.until(since, "no data since ")
	b.until(since, "; no data since ")
	b.until(dim, "0.5,0.5,0.5")
	b.until(gap, "1 behind,1 behind")
	for script, want := range map[string]string{
		`document.querySelector(".card .note").hidden`:                            "true",
		`document.querySelector(".card .available").textContent`:                  "6",
		`document.body.innerText.split("connection refused").length - 1`:          "1",
		`/--redis|rratelimiter:|Is Redis there/i.test(document.body.innerText)`:   "false",
		`document.getElementById("where").textContent.startsWith("redis://127.")`: "true",
	} {
		if got := b.text(script); got != want {
			t.Errorf("%s is %q, not %q", script, got, want)
		}
	}
	// a page that is opened now does not take the last look for now
	late := browser(t, 1000, 800, false)
	late.do(chromedp.Navigate(page + "/#orders"))
	late.until(gap, "1 behind,1 behind")
	unread := browser(t, 1000, 800, false) // of a limiter that was never read, nothing is said
	unread.do(chromedp.Navigate(page + "/#unread"))
	unread.until(since, "; no data since ")
	unread.until(`document.querySelector(".card .note").hidden`, "true")
	s.Restart()
	b.until(dot, "on: live")
	b.until(dim, "1,1,1")
	if got := b.text(since); got != "; " {
		t.Errorf("Redis is back: %q", got)
	}
	stop()
	b.until(dot, "off: no connection to rrl serve since ")
	b.until(dim, "0.5,0.5,0.5")
	b.until(since, "; no data since ")
}

// A name that is too long for its place has its middle left out, as in rrl ls: its title and its
// text have all of it.
func TestThePageShowsBothEndsOfALongName(t *testing.T) {
	s := redistest.Real(t)
	client := rratelimiter.NewClient(s.Client())
	long := "api:" + strings.Repeat("tenant-", 12)
	for i, name := range []string{long + "orders:read", long + "<i>&quot;write", "api:tenant-0042-search"} {
		l := client.RateLimiter(name)
		if err := l.SetRate(t.Context(), rratelimiter.PerHour(123456789)); err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryAcquire(t.Context(), 123456789-int64(i)); err != nil { // the first one is exhausted
			t.Fatal(err)
		}
	}
	b := browser(t, 1300, 800, false)
	b.do(chromedp.Navigate(serve(t, s)))
	for _, place := range []string{"#list", ".card"} {
		b.until(`[...document.querySelectorAll("`+place+` .name")].map((e) => (
			e.className + " " + e.title + (e.title === e.textContent ? " " : " is not ") + getComputedStyle(e, "::after").content.split(" / ")[0]
		)).join("\n")`, strings.Join([]string{
			`name api:tenant-0042-search none`,
			`name cut ` + long + `<i>&quot;write ">&quot;write"`,
			`name cut ` + long + `orders:read "-orders:read"`,
		}, "\n"))
		b.until(`[...document.querySelectorAll("`+place+` .rate")].map((e) => e.textContent).join()`, "123,456,789/h")
	}
	b.until(`document.getElementById("more").textContent`, "3 limiters")
	b.do(chromedp.SendKeys("#search", "nothing"))
	b.until(`document.getElementById("more").textContent`, "No name matches.")
}

// On a telephone the list has the screen while no card is open, and shows that it goes on: half a
// name, and their number.
func TestTheListGrowsOnATelephone(t *testing.T) {
	s := redistest.Real(t)
	for i := range 20 {
		l := rratelimiter.NewClient(s.Client()).RateLimiter(fmt.Sprintf("limiter:%02d", i))
		if err := l.SetRate(t.Context(), rratelimiter.PerSecond(3)); err != nil {
			t.Fatal(err)
		}
	}
	b := browser(t, 400, 800, false)
	b.do(chromedp.EmulateViewport(400, 800), chromedp.Navigate(serve(t, s)))
	const rows = `(() => {
		const list = document.getElementById("list").getBoundingClientRect();
		const cut = [...document.querySelectorAll("#list .name")].map((e) => e.getBoundingClientRect()).filter((e) => e.top < list.bottom);
		const last = cut.at(-1);
		return cut.length + (last?.bottom > list.bottom + 4 && last.top < list.bottom - 4 ? " rows, a name is cut" : " rows, no name is cut");
	})()`
	b.until(rows, "10 rows, a name is cut")
	b.until(`document.getElementById("more").textContent`, "20 limiters")
	b.until(`document.getElementById("more").getBoundingClientRect().bottom < innerHeight`, "true")
	b.until(`getComputedStyle(document.querySelector("main"), "::before").content`, `"Choose a limiter."`)
	b.do(chromedp.Click("#list button"))
	b.until(`document.querySelector(".card .of")?.textContent`, "of 3 permits free")
	b.until(rows, "6 rows, a name is cut")
}

// On a telephone nothing is wider than the screen: with long names, a long address, and without
// Redis or rrl serve.
func TestThePageFitsATelephone(t *testing.T) {
	s := redistest.Real(t)
	client := rratelimiter.NewClient(s.Client())
	names := []string{strings.Repeat("long:name:", 12), strings.Repeat("long-name-", 12), "orders"}
	for _, name := range names {
		l := client.RateLimiter(name)
		if err := l.SetRate(t.Context(), rratelimiter.PerHour(1000)); err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryAcquire(t.Context(), 1000); err != nil {
			t.Fatal(err)
		}
	}
	page, stop := serving(t, atLongPath(t, s))
	var tabs []tab
	fit := func() {
		t.Helper()
		for _, b := range tabs {
			b.until(
				`[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > 400.5 && e.clientWidth).map((e) => e.id || e.className || e.tagName).join() || "fits"`,
				"fits",
			)
			b.until(`document.documentElement.scrollWidth`, "400")
		}
	}
	for _, dark := range []bool{false, true} {
		b := browser(t, 400, 800, dark)
		b.do(chromedp.EmulateViewport(400, 800), chromedp.Navigate(page))
		b.until(`document.querySelectorAll(".card.exhausted").length`, "3")
		b.until(`document.getElementById("where").textContent`, "/long/")
		tabs = append(tabs, b)
	}
	fit()
	s.Kill()
	for _, b := range tabs {
		b.until(`document.getElementById("live").textContent`, "Redis away since")
	}
	fit()
	stop()
	for _, b := range tabs {
		b.until(`document.getElementById("live").textContent`, "no connection to rrl serve since")
	}
	fit()
}

// atLongPath returns the address of a socket, with a long path, that leads to a server.
func atLongPath(t *testing.T, s *redistest.Server) string {
	t.Helper()
	// t.TempDir has the name of the test in it, and a path may have 107 characters
	folder, err := os.MkdirTemp("", "rrl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	path := folder + "/long" + strings.Repeat("/long", (90-len(folder))/5)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return // the test has ended
			}
			out, err := net.Dial("tcp", s.Options().Addr)
			if err != nil {
				_ = in.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() { _, _ = io.Copy(pair[0], pair[1]); _ = pair[0].Close() }()
			}
		}
	}()
	return "unix://" + path
}

func TestTheTerminalShowsWhatHappens(t *testing.T) {
	s := redistest.Real(t)
	traffic(t, s)
	socket := filepath.Join(t.TempDir(), "tmux")
	tmux := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("tmux", append([]string{"-f", "/dev/null", "-S", socket}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %s: %v\n%s", args[0], err, out)
		}
		return string(out)
	}
	tmux("new-session", "-d", "-x", "150", "-y", "32", "-s", "view",
		command(t), "watch", "--redis", s.URL(), "orders", "api:search", "payments", "mail:outgoing")
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", socket, "kill-server").Run() }) // it may have ended by itself
	time.Sleep(warm())
	text := tmux("capture-pane", "-p", "-t", "view")
	for _, want := range []string{
		"rrl watch", "orders  50/s", "payments  5/250ms", "of 50 free", "fewest free", "▁", "Go client ",
		"Java or unknown", "last second", "q stops",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	coloured := tmux("capture-pane", "-p", "-e", "-t", "view")
	tmux("resize-window", "-t", "view", "-x", "60", "-y", "12")
	time.Sleep(500 * time.Millisecond)
	if small := tmux("capture-pane", "-p", "-t", "view"); !strings.Contains(small, "q stops") ||
		!strings.Contains(small, "payments") {
		t.Errorf("on a small terminal:\n%s", small)
	}
	tmux("send-keys", "-t", "view", "q")
	deadline := time.Now().Add(10 * time.Second)
	for exec.Command("tmux", "-S", socket, "has-session", "-t", "view").Run() == nil {
		if time.Now().After(deadline) {
			t.Fatal("q does not stop it")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if *update {
		keep(t, "watch.png", photograph(t, coloured))
	}
}

// photograph makes a picture of a terminal's text.
func photograph(t *testing.T, text string) []byte {
	t.Helper()
	html := `<!doctype html><meta charset="utf-8"><style>` + terminalStyle + `</style><pre class="term-container">` +
		terminal.Render([]byte(strings.TrimRight(text, "\n "))) + `</pre>`
	b := browser(t, 1310, 610, true)
	site := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(html)) }),
	)
	t.Cleanup(site.Close)
	b.do(chromedp.Navigate(site.URL))
	return b.picture(chromedp.FullScreenshot(100))
}

const terminalStyle = `body { margin: 0; background: #0d1117 }
pre { margin: 0; padding: 18px 22px; display: inline-block; background: #0d1117; color: #d6dde5; font: 14px/1.25 "DejaVu Sans Mono", monospace }
.term-fg1 { font-weight: bold; color: #fff } .term-fg2 { color: #7d8896 }
.term-fg31 { color: #f87171 } .term-fg32 { color: #2dd4bf } .term-fg33 { color: #fbbf24 }`
