package differential

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// fault_test.go makes connections that lose a request or its answer, when told to.

// A fault is what happens to the next script that is sent.
type fault int

const (
	noFault     fault = iota
	loseRequest       // it never reaches the server
	loseReply         // the server ran it, and nobody hears of it
)

// faults are the connections of one redis client.
type faults struct {
	mu    sync.Mutex
	next  fault
	times int // how many scripts in a row
	taken int // how many of these there were
}

// arm sets what happens to the next scripts.
func (f *faults) arm(next fault, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next, f.times, f.taken = next, times, 0
}

// disarm ends that, and tells how often it happened.
func (f *faults) disarm() (taken int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken = f.taken
	f.times, f.taken = 0, 0
	return taken
}

// take tells what happens to the script that is sent now.
func (f *faults) take() fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.times == 0 {
		return noFault
	}
	f.times--
	f.taken++
	return f.next
}

// options are those of a client with these connections.
func (f *faults) options(o *redis.Options) {
	o.PoolSize = 4
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &faultyConn{Conn: conn, faults: f}, nil
	}
}

type faultyConn struct {
	net.Conn
	faults *faults

	mu   sync.Mutex
	lost bool // the next answer
}

func (c *faultyConn) Write(b []byte) (int, error) {
	if bytes.Contains(bytes.ToLower(b), []byte("\r\neval")) {
		switch c.faults.take() {
		case loseRequest:
			c.Conn.Close()
			return 0, io.ErrClosedPipe
		case loseReply:
			c.mu.Lock()
			c.lost = true
			c.mu.Unlock()
		}
	}
	return c.Conn.Write(b)
}

// Read waits for the answer also where it is lost: so the server has run the script by then.
func (c *faultyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	lost := c.lost
	c.mu.Unlock()
	if lost {
		c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}
