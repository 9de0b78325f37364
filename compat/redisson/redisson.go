// Package redisson runs real Redissons in Go tests. It builds a small Java program (compat/java)
// with any version of Redisson on Maven Central, starts it as a child process, and has a method for
// each of its commands. It is the Java side of all compatibility tests in this repository, and does
// not depend on the Go limiter.
//
//	java := redisson.Start(t, "3.17.5", redisson.Addr("127.0.0.1:6379"))
//	ok, err := java.TryAcquire(ctx, "jobs", 1)
//
// A test of many versions first calls Build for all of them. That runs Maven once. If all are built
// already, Build only compares some files. JDK 17 and Maven are needed: if one is missing, Build
// and Start fail and say how to install it.
//
// Commands on one Process may run at the same time, each in a Java thread of its own.
//
// This file has the process and the protocol, commands.go the commands, run.go threads that acquire
// in the background, bench.go the measurement of such threads, build.go the build.
package redisson

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rratelimiter/rratelimiter/internal/maven"
)

// Versions are the Redisson versions that the tests run with, of all Releases: some of each record
// format, those that changed behaviour, and the newest.
var Versions = []string{
	"3.13.6", "3.15.6", "3.16.8", "3.17.5", "3.20.1", "3.21.0",
	"3.35.0", "3.38.0", "3.52.0", "4.6.1", "4.7.0",
}

const (
	// callTimeout bounds a call whose context has no deadline.
	callTimeout = 30 * time.Second
	// startTimeout bounds the start of a JVM until Redisson is connected (usually 0.7 s).
	startTimeout = 60 * time.Second
	// stopTimeout is how long a JVM may take to leave after its stdin was closed.
	stopTimeout = 5 * time.Second
	// stderrKept is how much of the end of the JVM's stderr is kept for reports.
	stderrKept = 64 << 10
)

// ErrUnsupported is matched by the error of a command which that version of Redisson does not have.
var ErrUnsupported = errors.New("not in this version of Redisson")

// An Error is an exception that Redisson threw.
type Error struct {
	// Version is that of the Redisson concerned.
	Version string
	// Class is the exception's full class name, or "unsupported".
	Class string
	// Message is its text on one line, with the causes where they say more.
	Message string
}

func (e *Error) Error() string {
	return "Redisson " + e.Version + ": " + e.Class + ": " + e.Message
}

// Is makes errors.Is(err, ErrUnsupported) work.
func (e *Error) Is(target error) bool {
	return target == ErrUnsupported && e.Class == "unsupported"
}

// An Option says how Redisson is to be configured, in the words of the harness's command line.
type Option func(*settings)

type settings struct {
	addresses []string
	args      []string
	env       []string
	jvm       []string
}

// Addr names the server, or the nodes of a cluster, or the sentinels. An address is host:port or a
// URL: redis://[user:password@]host:port[/db], rediss:// for TLS.
func Addr(addresses ...string) Option {
	return func(s *settings) {
		for _, address := range addresses {
			if !strings.Contains(address, "://") {
				address = "redis://" + address
			}
			s.addresses = append(s.addresses, address)
		}
	}
}

// Cluster says that the addresses are nodes of a Redis Cluster.
func Cluster() Option { return words("--cluster") }

// Sentinel says that the addresses are sentinels which watch the given master.
func Sentinel(master string) Option { return words("--sentinel", master) }

// TrustAll makes Redisson take any TLS certificate.
func TrustAll() Option { return words("--tls-trust-all") }

// NamePrefix gives Redisson a name mapper that puts prefix before every name (in 3.15.6,
// not in 3.13.6).
func NamePrefix(prefix string) Option { return words("--name-prefix", prefix) }

// Pool bounds the connections to a node; Redisson's default is 64.
func Pool(n int) Option { return words("--pool", strconv.Itoa(n)) }

// CommandTimeout is how long Redisson waits for the answer to a command; its default is 3 s.
func CommandTimeout(d time.Duration) Option { return words("--timeout", millis(d)) }

// Env adds KEY=VALUE pairs to the environment of the JVM.
func Env(pairs ...string) Option {
	return func(s *settings) { s.env = append(s.env, pairs...) }
}

// JVM gives the flags of the JVM itself. The default ones let it start fast and stay small; whoever
// measures speed wants others.
func JVM(flags ...string) Option {
	return func(s *settings) { s.jvm = flags }
}

func words(args ...string) Option {
	return func(s *settings) { s.args = append(s.args, args...) }
}

// A Process is a JVM with a connected Redisson in it. Its methods may be called at the same time.
type Process struct {
	version string
	id      string
	cmd     *exec.Cmd
	stderr  *maven.Tail
	exited  chan struct{} // closed when the JVM is gone

	writing sync.Mutex
	stdin   io.WriteCloser

	mu      sync.Mutex
	lastTag int
	pending map[string]*call
	closing bool
	gone    error // why no call can be answered any more
}

// A call waits for the last line of its answer; each line before that goes to more.
type call struct {
	more func(words []string)
	done chan string
}

// Start builds the harness for a version where that has not been done, starts it, and stops it when
// the test ends. If the test has failed by then, what the JVM wrote to stderr is logged. Redisson's
// first command has 3 s: on a busy machine that can be too short, so Start tries up to three times.
func Start(tb testing.TB, version string, opts ...Option) *Process {
	tb.Helper()
	var p *Process
	var err error
	for range 3 {
		if p, err = Open(context.Background(), version, opts...); err == nil ||
			!strings.Contains(err.Error(), "RedisTimeoutException") {
			break
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		err := p.Close()
		if tb.Failed() {
			tb.Logf("stderr of Redisson %s (pid %d, %v):\n%s", version, p.Pid(), err, p.Stderr())
		}
	})
	return p
}

// Open is Start for those who have no test at hand. The caller calls Close.
func Open(ctx context.Context, version string, opts ...Option) (*Process, error) {
	s := settings{jvm: smallJVM}
	for _, opt := range opts {
		opt(&s)
	}
	if len(s.addresses) == 0 {
		return nil, errors.New("redisson: no address given")
	}
	// The command must outlive ctx, which bounds the start alone.
	cmd, err := command(ctx, version, s.jvm, append([]string{"--redis", strings.Join(s.addresses, ",")}, s.args...))
	if err != nil {
		return nil, err
	}
	p := &Process{
		version: version,
		cmd:     cmd,
		stderr:  &maven.Tail{Max: stderrKept},
		exited:  make(chan struct{}),
		pending: make(map[string]*call),
	}
	p.cmd.Env = append(os.Environ(), s.env...)
	p.cmd.Stderr = p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("redisson: %w", err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("redisson: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("redisson: start %s: %w", version, err)
	}
	ready := make(chan string, 1)
	go p.read(stdout, ready)

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case line := <-ready:
		words := strings.Fields(line)
		if len(words) == 3 && words[0] == "ready" && words[1] == version {
			p.id = words[2]
			return p, nil
		}
		if failure := p.failure(line); failure != nil {
			err = failure
		} else {
			err = fmt.Errorf("redisson: %s began with %q: %s", version, line, p.Stderr())
		}
	case <-ctx.Done():
		err = fmt.Errorf("redisson: %s is not ready: %w: %s", version, ctx.Err(), p.Stderr())
	}
	p.Kill()
	p.Close()
	return nil, err
}

// Command prepares, but does not start, the harness with the words of its own command line; a build
// that it needs is bounded by the context. Without a command among the words it speaks the protocol
// of compat/java on stdin and stdout.
func Command(ctx context.Context, version string, words ...string) (*exec.Cmd, error) {
	return command(ctx, version, smallJVM, words)
}

// smallJVM are flags for a JVM that starts fast and stays small. A class data archive of our own
// was measured too: it saves 50 ms of 700, and is not worth its 10 MB a version.
var smallJVM = []string{"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m"}

// quietJVM are flags for a JVM that leaves stdout to the protocol: its log goes to stderr. It keeps
// no performance data, because JVMs that start at the same time can lock each other's files, and
// log that.
var quietJVM = []string{"-XX:-UsePerfData", "-Xlog:disable", "-Xlog:all=warning:stderr"}

func command(ctx context.Context, version string, flags, words []string) (*exec.Cmd, error) {
	jar, err := Jar(ctx, version)
	if err != nil {
		return nil, err
	}
	return exec.Command(maven.Java(), slices.Concat(flags, quietJVM, []string{"-jar", jar}, words)...), nil
}

// read hands the lines of the JVM to those who wait for them, until it ends.
func (p *Process) read(stdout io.Reader, ready chan<- string) {
	lines := bufio.NewReaderSize(stdout, 64<<10)
	first := true
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		line = strings.TrimSuffix(line, "\n")
		if first {
			first = false
			ready <- line
			continue
		}
		tag, rest, _ := strings.Cut(line, " ")
		last := rest == "ok" || strings.HasPrefix(rest, "ok ") || strings.HasPrefix(rest, "error ")
		p.mu.Lock()
		c := p.pending[tag]
		if last {
			delete(p.pending, tag)
		}
		p.mu.Unlock()
		switch {
		case c == nil: // its caller has left
		case last:
			c.done <- rest
		case c.more != nil:
			c.more(strings.Fields(rest))
		}
	}
	p.cmd.Wait() // how it ended is in its ProcessState
	p.mu.Lock()
	if p.closing {
		p.gone = fmt.Errorf("redisson: %s is closed", p.version)
	} else {
		p.gone = fmt.Errorf("redisson: %s has ended (%v): %s", p.version, p.cmd.ProcessState, p.stderr)
	}
	p.mu.Unlock()
	close(p.exited)
	if first {
		ready <- ""
	}
}

// do sends one command and waits for its answer: the words after "ok", or what failed.
func (p *Process) do(ctx context.Context, more func([]string), command string, args ...string) ([]string, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	if err := ctx.Err(); err != nil {
		return nil, p.wrap(command, err)
	}
	c := &call{more: more, done: make(chan string, 1)}
	p.mu.Lock()
	if p.gone != nil {
		p.mu.Unlock()
		return nil, p.gone
	}
	p.lastTag++
	tag := "@" + strconv.Itoa(p.lastTag)
	p.pending[tag] = c
	p.mu.Unlock()

	line := tag + " " + command
	for _, arg := range args {
		line += " " + arg
	}
	if err := p.send(line); err != nil {
		// The pipe breaks when the JVM is gone: that is the error to tell.
		select {
		case <-p.exited:
		case <-time.After(stopTimeout):
			return nil, p.wrap(command, err)
		}
	}
	select {
	case answer := <-c.done:
		return p.parse(answer)
	case <-p.exited:
		select {
		case answer := <-c.done:
			return p.parse(answer)
		default:
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return nil, p.wrap(command, p.gone)
	case <-ctx.Done():
		p.mu.Lock()
		delete(p.pending, tag)
		p.mu.Unlock()
		p.send("@0 cancel " + tag)
		return nil, p.wrap(command, ctx.Err())
	}
}

func (p *Process) send(line string) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	_, err := io.WriteString(p.stdin, line+"\n")
	return err
}

func (p *Process) wrap(command string, err error) error {
	return fmt.Errorf("redisson: %s %s: %w", p.version, command, err)
}

func (p *Process) parse(answer string) ([]string, error) {
	if err := p.failure(answer); err != nil {
		return nil, err
	}
	return strings.Fields(answer)[1:], nil
}

// failure turns an error line into an error, and any other line into nil.
func (p *Process) failure(line string) error {
	words := strings.SplitN(line, " ", 3)
	if words[0] != "error" || len(words) < 2 {
		return nil
	}
	e := &Error{Version: p.version, Class: words[1]}
	if len(words) == 3 {
		e.Message = words[2]
	}
	return e
}

// Version is the Redisson version inside, as its jar states it.
func (p *Process) Version() string { return p.version }

// ID is the client id, RedissonClient.getId(): the CLIENT in the names of PER_CLIENT keys.
func (p *Process) ID() string { return p.id }

// Pid is the process id of the JVM, for tests that stop and continue it.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Stderr is the end of what the JVM wrote to stderr so far: warnings and errors of Redisson's log.
func (p *Process) Stderr() string { return p.stderr.String() }

// Kill ends the JVM at once, as a crash would.
func (p *Process) Kill() {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	p.cmd.Process.Kill()
	<-p.exited
}

// Close ends the JVM and waits until it is gone; calls under way fail. It may be called again.
func (p *Process) Close() error {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	p.stdin.Close()
	select {
	case <-p.exited:
		return nil
	case <-time.After(stopTimeout):
		p.Kill()
		return fmt.Errorf("redisson: %s did not leave within %v and was killed", p.version, stopTimeout)
	}
}

// escape writes a name as one word of the protocol. Java's strings are Unicode, so a name of
// other bytes cannot exist there.
func escape(name string) (string, error) {
	if !utf8.ValidString(name) {
		return "", fmt.Errorf("redisson: the name %q is not UTF-8, which Java can't hold", name)
	}
	if name == "" {
		return `""`, nil
	}
	return url.QueryEscape(name), nil
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
