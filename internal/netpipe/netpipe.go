// Package netpipe connects clients to the embedded server over pipes whose writes never block.
package netpipe

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// A conn is the client's end of a pipe to the embedded server. A pipe holds no bytes, and the
// server answers a command before it reads the next, so a client that writes a long pipeline, and
// reads later, would block it and itself. A conn takes all that is written at once, and passes it
// on when the server reads.
type conn struct {
	net.Conn
	closing sync.Once
	closed  chan struct{}
	ready   chan struct{}

	mu      sync.Mutex
	pending []byte
}

// Conn makes the client's end of a pipe netpipe.
func Conn(pipe net.Conn) net.Conn {
	c := &conn{Conn: pipe, closed: make(chan struct{}), ready: make(chan struct{}, 1)}
	go c.pass()
	return c
}

func (c *conn) pass() {
	for {
		select {
		case <-c.ready:
		case <-c.closed:
			return
		}
		c.mu.Lock()
		bytes := c.pending
		c.pending = nil
		c.mu.Unlock()
		if _, err := c.Conn.Write(bytes); err != nil {
			c.Close()
		}
	}
}

func (c *conn) Write(bytes []byte) (int, error) {
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	default:
	}
	c.mu.Lock()
	c.pending = append(c.pending, bytes...)
	c.mu.Unlock()
	select {
	case c.ready <- struct{}{}:
	default:
	}
	return len(bytes), nil
}

// Read fails after Close as on a TCP connection.
func (c *conn) Read(bytes []byte) (int, error) {
	n, err := c.Conn.Read(bytes)
	if errors.Is(err, io.ErrClosedPipe) {
		err = &net.OpError{Op: "read", Err: net.ErrClosed}
	}
	return n, err
}

func (c *conn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// A write never blocks, so it has no deadline.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
func (c *conn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
