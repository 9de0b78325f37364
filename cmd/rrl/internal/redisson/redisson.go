// Package redisson runs a real Redisson in a JVM, and a redis-server, for rrl demo --java. Maven
// gets the jars. Both processes end with this one, even if it is killed.
package redisson

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/maven"
)

// redisson.go runs the JVM with Demo.java; build.go makes its jar, server.go runs the redis-server.

// Settings are what the threads of a JVM do, in the order in which Demo.java reads them.
type Settings struct {
	Address        string // redis:// or rediss://, host and port
	Database       int
	User, Password string
	Name           string // of the limiter
	Permits        int64  // of each request
	Workers        int    // threads that block in acquire
	WorkPause      time.Duration
	Pollers        int // threads that call tryAcquire
	PollPause      time.Duration
}

func (s Settings) String() string {
	var words []string
	for _, word := range []any{
		s.Address, s.Database, s.User, s.Password, s.Name, s.Permits,
		s.Workers, s.WorkPause.Nanoseconds(), s.Pollers, s.PollPause.Nanoseconds(),
	} {
		words = append(words, url.QueryEscape(fmt.Sprint(word)))
	}
	return strings.Join(words, " ") + "\n"
}

// A Result is that of a request of a thread, which began and ended between two times.
type Result struct {
	Granted    bool
	Worker     bool
	Start, End time.Time
}

// startLimit bounds the start of a JVM until Redisson is connected, which usually takes a second.
const startLimit = time.Minute

// A Process is a JVM with a connected Redisson.
type Process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  *bufio.Scanner
	errors maven.Tail
}

// Start starts a JVM, and returns when its Redisson is connected.
func Start(ctx context.Context, jar string, s Settings) (*Process, error) {
	p := &Process{
		cmd: exec.Command(
			maven.Java(), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx256m", "-jar", jar,
		),
	}
	ownGroup(p.cmd)
	p.errors.Max = tailKept
	p.cmd.Stderr = &p.errors
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.lines = bufio.NewScanner(out)
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	killed := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() }) // fails if it has ended
	_, err = io.WriteString(p.in, s.String())
	ready := err == nil && p.lines.Scan() && p.lines.Text() == "ready"
	if !killed() {
		_ = p.cmd.Wait() // killed
		return nil, fmt.Errorf("start Redisson: %w", ctx.Err())
	}
	if !ready {
		return nil, p.ended()
	}
	return p, nil
}

// Run lets the threads acquire permits until ctx ends, and passes on their results. Then it ends
// the JVM.
func (p *Process) Run(ctx context.Context, result func(Result)) error {
	stop := context.AfterFunc(ctx, p.stop)
	defer stop()
	_, err := io.WriteString(p.in, "start\n")
	for err == nil && p.lines.Scan() {
		var r Result
		if r, err = parse(p.lines.Text()); err == nil {
			result(r)
		}
	}
	if ctx.Err() != nil {
		_ = p.cmd.Wait() // how it ended is of no interest
		return nil
	}
	if err != nil {
		p.stop()
		_ = p.cmd.Wait()
		return err
	}
	return p.ended()
}

// stop ends the JVM: by the end of its stdin, or by force.
func (p *Process) stop() {
	p.in.Close()
	time.AfterFunc(3*time.Second, func() { _ = p.cmd.Process.Kill() }) // fails if it has ended
}

// Close ends the JVM if Run was not called.
func (p *Process) Close() {
	p.stop()
	_ = p.cmd.Wait()
}

// ended returns why the JVM ended by itself.
func (p *Process) ended() error {
	_ = p.cmd.Process.Kill()
	err := p.cmd.Wait()
	return fmt.Errorf("the JVM with Redisson has ended (%v): %s", err, strings.TrimSpace(p.errors.String()))
}

// tailKept is how many bytes are kept of what a program writes, for the error if it ends.
const tailKept = 2000

var resultForm = regexp.MustCompile(`^(granted|denied) (worker|poller) (\d+) (\d+)$`)

// parse reads a line of Demo.java. The times that it has are rounded down to ms.
func parse(line string) (Result, error) {
	if text, failed := strings.CutPrefix(line, "failed "); failed {
		return Result{}, errors.New("Redisson: " + text)
	}
	words := resultForm.FindStringSubmatch(line)
	if words == nil {
		return Result{}, fmt.Errorf("the JVM with Redisson printed %q", line)
	}
	at := func(word string) time.Time {
		ms, _ := strconv.ParseInt(word, 10, 64) // digits
		return time.UnixMilli(ms)
	}
	return Result{words[1] == "granted", words[2] == "worker", at(words[3]), at(words[4]).Add(time.Millisecond)}, nil
}
