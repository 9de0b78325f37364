package differential

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
)

// fault_test.go provides connections that lose a request or its reply on demand.

// A fault is what happens to the next script.
type fault int

const (
	noFault     fault = iota
	loseRequest       // the request never reaches the server
	loseReply         // the server runs the script, but the reply is lost
)

// faults controls the connections of one redis client. mu guards all fields.
type faults struct {
	mu    sync.Mutex
	next  fault
	times int // how many of the next scripts get the fault
	taken int // how many scripts got it since arm
}

// arm sets what happens to the next scripts.
func (f *faults) arm(next fault, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next, f.times, f.taken = next, times, 0
}

// disarm ends the fault and returns how many scripts got it.
func (f *faults) disarm() (taken int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken = f.taken
	f.times, f.taken = 0, 0
	return taken
}

// take returns the fault of the script that is sent now.
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

// options configures a redis client to use these connections.
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
	lost bool // the next reply is lost; guarded by mu
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

// Read also waits for a reply that it then loses, so the server has run the script by the time Read
// fails.
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
