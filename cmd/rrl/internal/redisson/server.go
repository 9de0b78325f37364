package redisson

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/maven"
)

func serverPath() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		path, err = exec.LookPath("valkey-server")
	}
	return path, err
}

// Server starts a redis-server on this host that writes no files. It returns when the server
// accepts connections.
func Server(ctx context.Context) (addr string, stop func(), err error) {
	path, err := serverPath()
	if err != nil {
		return "", nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = free.Addr().String()
	port := free.Addr().(*net.TCPAddr).Port
	if err := free.Close(); err != nil {
		return "", nil, err
	}
	// The shell ends the server when its stdin ends, which this process does not outlive.
	cmd := exec.Command("sh", "-c", `"$@" </dev/null & read _; kill $!; wait $!`, "sh",
		path, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--save", "", "--appendonly", "no")
	ownGroup(cmd)
	output := &maven.Tail{Max: tailKept}
	cmd.Stdout, cmd.Stderr = output, output
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		in.Close()
		_ = cmd.Wait() // the status of a server that was ended
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return addr, stop, conn.Close()
		}
		if ctx.Err() == nil && time.Now().Before(deadline) {
			continue
		}
		stop()
		if ctx.Err() != nil {
			return "", nil, ctx.Err()
		}
		return "", nil, errors.Join(
			fmt.Errorf("%s does not answer: %w", path, err), errors.New(strings.TrimSpace(output.String())),
		)
	}
}
