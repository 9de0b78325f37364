package redistest

// This file runs one redis-server process: finds the binary and a port, waits until it replies, and
// ends it by its pid.

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	serverEnv     = "RRATELIMITER_REDIS_SERVER"
	startLimit    = 30 * time.Second // generous: test machines are small and busy
	portAttempts  = 10
	clusterOffset = 10000 // from a node's port to its bus port
)

var (
	errPortTaken = errors.New("port taken")
	errNoTLS     = errors.New("the server is built without TLS")
)

// A process is a redis-server on a loopback port. It stays the same through restarts.
type process struct {
	addr, dir string
	args      []string
	tls       *TLS // nil: plain

	mu     sync.Mutex
	cmd    *exec.Cmd
	gone   chan struct{} // closed when cmd has ended
	output *tail
}

// startProcess starts a redis-server. If it is configured to write files, they are in dir. If
// secure is not nil, the server accepts only TLS.
func startProcess(dir string, cluster bool, secure *TLS, args []string) (*process, error) {
	binary, err := findServer()
	if err != nil {
		return nil, err
	}
	return launch(binary, dir, cluster, secure, args)
}

// launch is startProcess with a binary of the caller's choice.
func launch(binary, dir string, cluster bool, secure *TLS, args []string) (*process, error) {
	var err error
	for range portAttempts {
		port := freePort(cluster)
		p := &process{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir, tls: secure}
		p.args = []string{binary, "--port", strconv.Itoa(port)}
		if secure != nil {
			p.args = append([]string{binary, "--port", "0", "--tls-port", strconv.Itoa(port)}, secure.args()...)
		}
		p.args = append(append(p.args, "--bind", "127.0.0.1",
			"--dir", dir, "--save", "", "--appendonly", "no", "--daemonize", "no", "--logfile", "",
			"--databases", strconv.Itoa(databases)), args...)
		err = p.start()
		if err == nil {
			return p, nil
		}
		p.kill()
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return nil, err
}

// findServer returns the path of redis-server, or an error that says how to get it.
func findServer() (string, error) {
	if r, named := namedRelease(); named {
		return r.find()
	}
	path, err := exec.LookPath(cmp.Or(os.Getenv(serverEnv), "redis-server"))
	if err != nil {
		return "", fmt.Errorf("%w\nThese tests need a real redis-server, 6.2 or later:\n"+
			"\tDebian, Ubuntu: apt-get install -y redis-server   (make deps does it)\n"+
			"\tFedora:         dnf install -y redis\n"+
			"\tmacOS:          brew install redis\n"+
			"or set %s to the path of one", err, serverEnv)
	}
	return path, nil
}

// start runs the process and returns when it replies.
func (p *process) start() error {
	p.mu.Lock()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.SysProcAttr = processAttr()
	output := &tail{}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.WaitDelay = time.Second // a child of its own may hold the pipe
	gone := make(chan struct{})
	started := make(chan error)
	go func() {
		// The kernel ends a child with its parent's thread, not with the parent: so the thread that
		// starts it stays for as long as it runs.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // usually killed; its messages are in output
			close(gone)
		}
	}()
	err := <-started
	if err == nil {
		p.cmd, p.gone, p.output = cmd, gone, output
	}
	p.mu.Unlock()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.args[0], err)
	}
	return p.ready(cmd.Process.Pid, gone, output)
}

// ready waits until this process, and no other on the same port, replies.
func (p *process) ready(pid int, gone <-chan struct{}, output *tail) error {
	deadline := time.Now().Add(startLimit)
	for {
		answering, err := servingPid(p.addr, p.tls)
		if answering == pid {
			return nil
		}
		select {
		case <-gone:
			said := output.String()
			if strings.Contains(said, "Address already in use") {
				return fmt.Errorf("%s: %w", p.addr, errPortTaken)
			}
			if p.tls != nil && strings.Contains(said, "Failed finding TLS support") {
				return fmt.Errorf("%s: %w", p.args[0], errNoTLS)
			}
			return fmt.Errorf("%s ended at once, it said:\n%s", strings.Join(p.args, " "), said)
		case <-time.After(2 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer after %v (%v), it said:\n%s",
				strings.Join(p.args, " "), startLimit, err, output.String())
		}
	}
}

// servingPid returns the process id that the server at addr reports.
func servingPid(addr string, secure *TLS) (int, error) {
	conn, err := dial(addr, secure, time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(conn, "INFO server\r\n"); err != nil {
		return 0, err
	}
	reader := bufio.NewReader(conn)
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if strings.HasPrefix(line, "-") {
			return 0, errors.New(strings.TrimSpace(line)) // -LOADING, for example
		}
		if pid := infoField(line, "process_id"); pid != "" {
			return strconv.Atoi(pid)
		}
	}
}

func dial(addr string, secure *TLS, timeout time.Duration) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: timeout}
	if secure != nil {
		return tls.DialWithDialer(dialer, "tcp", addr, secure.Config)
	}
	return dialer.Dial("tcp", addr)
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.runs() {
		return 0
	}
	return p.cmd.Process.Pid
}

// runs says whether the process has been started and has not ended. The caller holds mu.
func (p *process) runs() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

func (p *process) signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.runs() {
		return fmt.Errorf("signal %v: redis-server at %s does not run", s, p.addr)
	}
	return p.cmd.Process.Signal(s)
}

func (p *process) pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	deadline := time.Now().Add(startLimit)
	for !standsStill(p.pid()) {
		if time.Now().After(deadline) {
			return fmt.Errorf("redis-server at %s does not stop", p.addr)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

func (p *process) resume() error { return p.signal(syscall.SIGCONT) }

// kill ends the process, paused or not, and waits until it has ended. A second kill does nothing.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs() {
		_ = p.cmd.Process.Kill() // fails only if it ended by itself
		<-p.gone
	}
}

// restart starts the process again on its port, which a connection that is just going may hold for
// a moment.
func (p *process) restart() error {
	p.kill()
	var err error
	for range portAttempts {
		if err = p.start(); !errors.Is(err, errPortTaken) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// A tail keeps the last few thousand bytes that were written to it.
type tail struct {
	mu    sync.Mutex
	bytes []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes = append(t.bytes, b...)
	if over := len(t.bytes) - 8192; over > 0 {
		t.bytes = append(t.bytes[:0], t.bytes[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.bytes)
}
