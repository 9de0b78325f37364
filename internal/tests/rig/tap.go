package rig

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Tap intercepts the connections of a client, and applies the test's plans to the next requests
// that run a script, or a command of which a method makes use instead.
type Tap struct {
	// makes the connections; nil: by TCP
	Over func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex
	plans []Plan
	seen  int // such requests
}

// A Plan determines what happens to one request, which may be a pipeline. The zero plan lets it
// pass.
type Plan struct {
	Lost    bool   // it does not arrive
	Half    bool   // only half of it arrives
	Cut     bool   // it is executed, and then the connection breaks
	Replies int    // number of replies that arrive before that
	Part    int    // and number of bytes of the next one
	Answer  string // it does not arrive, and this is the reply
	Then    func() // called after it was executed or sent, before its reply is read
}

// Plan sets the plans of the next requests, in their order. Later requests pass.
func (p *Tap) Plan(plans ...Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans = plans
}

func (p *Tap) next() Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen++
	if len(p.plans) == 0 {
		return Plan{}
	}
	next := p.plans[0]
	p.plans = p.plans[1:]
	return next
}

// Requests returns the number of requests since its last call.
func (p *Tap) Requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { p.seen = 0 }()
	return p.seen
}

// Dial makes a connection with the tap on it.
func (p *Tap) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := p.Over
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	conn, err := dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &tapConn{Conn: conn, tap: p}, nil
}

// Tapped returns a client of the rig's server, with its clock and id, on connections with a tap.
func (r *Rig) Tapped(opts ...rratelimiter.Option) (*rratelimiter.Client, *Tap) {
	for _, s := range []*script.Script{
		protocol.AcquireScript, protocol.AcquireManyScript, protocol.AllowAllScript, protocol.ChargeScript,
		protocol.ExpireScript, protocol.ReleaseScript, protocol.RenameScript, protocol.SetRateScript,
		protocol.StateScript,
		protocol.TrySetRateScript,
	} {
		r.Must(r.Redis.ScriptLoad(r.T.Context(), s.Text).Err()) // so that no call is two
	}
	p := &Tap{}
	rdb := r.Server.Client(func(o *redis.Options) { o.Dialer = p.Dial })
	c := rratelimiter.NewClient(rdb, append([]rratelimiter.Option{
		rratelimiter.WithClientID("me"), rratelimiter.WithClock(r.Now), rratelimiter.WithCallTimeout(20 * time.Second),
	}, opts...)...)
	Core(c).Tune(limiter.Tuning{Patience: time.Minute})
	return c, p
}

type tapConn struct {
	net.Conn
	tap  *Tap
	rest []byte // replies still to be read by the client
	dead bool
}

func (c *tapConn) Write(request []byte) (int, error) {
	commands := 0
	for _, line := range bytes.Split(request, []byte("\r\n")) {
		switch string(bytes.ToLower(line)) {
		case "evalsha", "eval", "del", "exists", "pttl", "scan":
			commands++
		}
	}
	if commands == 0 {
		return c.Conn.Write(request)
	}
	plan := c.tap.next()
	switch {
	case plan.Lost:
		c.dead = true
	case plan.Answer != "":
		c.rest = []byte(plan.Answer)
	case plan.Half:
		c.dead = true
		return c.Conn.Write(request[:len(request)/2])
	case plan.Cut:
		if n, err := c.Conn.Write(request); err != nil {
			return n, err
		}
		c.dead = true
		replies := readReplies(c.Conn, commands)
		c.rest = slices.Concat(replies[:plan.Replies]...)
		if plan.Part > 0 {
			c.rest = append(c.rest, replies[plan.Replies][:plan.Part]...)
		}
	default:
		if n, err := c.Conn.Write(request); err != nil {
			return n, err
		}
	}
	if plan.Then != nil {
		plan.Then()
	}
	return len(request), nil
}

func (c *tapConn) Read(b []byte) (int, error) {
	switch {
	case len(c.rest) > 0:
		n := copy(b, c.rest)
		c.rest = c.rest[n:]
		return n, nil
	case c.dead:
		_ = c.Conn.Close()
		return 0, io.EOF
	}
	return c.Conn.Read(b)
}

// readReplies reads replies.
func readReplies(from io.Reader, n int) (replies [][]byte) {
	r := bufio.NewReader(from)
	for range n {
		replies = append(replies, ReadReply(r))
	}
	return replies
}

// ReadReply reads a reply: a number, a status, an error, a text, or a list of these.
func ReadReply(r *bufio.Reader) []byte {
	reply, err := r.ReadBytes('\n')
	if err != nil {
		return nil
	}
	length, _ := strconv.Atoi(strings.TrimSpace(string(reply[1:])))
	switch reply[0] {
	case '*':
		for range length {
			reply = append(reply, ReadReply(r)...)
		}
	case '$':
		if length < 0 {
			break // there is none
		}
		text := make([]byte, length+len("\r\n"))
		_, _ = io.ReadFull(r, text)
		reply = append(reply, text...)
	}
	return reply
}
