package main

import (
	"context"
	"encoding/binary"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/maven"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The commands of the README run both programs on one server. No second has more than 10 grants, by
// what the server has executed.
func TestBothKeepOneLimit(t *testing.T) {
	server := redistest.Real(t)
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile("(?s)```sh\n(.*?)\n```").FindStringSubmatch(string(page))
	if commands == nil {
		t.Fatal("README.md has no commands")
	}
	unlock, err := maven.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()

	executed := server.Monitor(func(c redistest.Command) bool { return c.Name() == "ZADD" })
	rdb := server.Client()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var programs sync.WaitGroup
	for command := range strings.SplitSeq(commands[1], "\n") {
		seconds := " 3"
		if strings.HasPrefix(command, "go ") {
			seconds = " 5"
			// Java comes first: Maven may have to get jars before.
			for deadline := time.Now().Add(5 * time.Minute); rdb.Exists(ctx, "orders").Val() == 0 && ctx.Err() == nil; {
				if time.Now().After(deadline) {
					t.Fatal("Java does not use the limiter")
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		address := "redis://localhost:6379"
		if !strings.Contains(command, address) {
			t.Fatalf("no %s in %s", address, command)
		}
		command = strings.Replace(command, address, server.URL()+seconds, 1)
		programs.Go(func() {
			out, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "order shipped") {
				t.Errorf("%s: %v\n%s", command, err, out)
				stop()
			}
		})
	}
	programs.Wait()

	// A program reads its clock before it sends a call, and may stand still in between: a grant was
	// made at some time from its score until the server executed it. A record that a repeated call
	// writes again is one grant.
	grants := map[string]window.Grant{}
	for _, c := range executed.Stop() {
		for score, member := range c.Added() {
			at, ok := redistest.Micros(score)
			if !ok || len(member) < 4 {
				t.Fatalf("a record %q at %s", member, score)
			}
			g, again := grants[member]
			if !again {
				g = window.Grant{
					Permits: int64(binary.LittleEndian.Uint32([]byte(member[len(member)-4:]))),
					Start:   time.UnixMicro(at),
				}
			}
			g.End = c.Time
			grants[member] = g
		}
	}
	var inGo, inJava int64
	for member, g := range grants {
		if strings.HasPrefix(member[1:], "Go") { // behind the length of the id
			inGo += g.Permits
		} else {
			inJava += g.Permits
		}
	}
	most, _ := window.Largest(slices.Collect(maps.Values(grants)), time.Second)
	t.Logf("%d permits in Go, %d in Java, at most %d in a second", inGo, inJava, most)
	if most > 10 || inGo == 0 || inJava == 0 {
		t.Errorf("%d permits in Go, %d in Java, %d in a second", inGo, inJava, most)
	}
}
