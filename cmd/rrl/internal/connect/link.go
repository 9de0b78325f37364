package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// link.go connects a program that serves, and that starts also while Redis is away.

// A Link is the way to a server that may not have answered yet. It is safe for concurrent use.
type Link struct {
	flags  Flags
	stop   context.CancelFunc
	server atomic.Pointer[Server] // nil until it has answered
	reason atomic.Pointer[error]  // why it has not
	ended  chan struct{}          // closed after the last attempt
}

// retryAfter is the pause between two attempts to connect.
const retryAfter = time.Second

// Dial connects as Open does. If the server does not answer, Dial says so in a line to errs, and
// tries again in the background until ctx ends. All other errors are returned, such as those of an
// address or a password. Those of a later attempt are lines, too.
func Dial(ctx context.Context, f Flags, errs io.Writer) (*Link, error) {
	ctx, stop := context.WithCancel(ctx)
	l := &Link{flags: f, stop: stop, ended: make(chan struct{})}
	err := l.attempt(ctx)
	switch {
	case err == nil:
		close(l.ended)
	case !errors.As(err, new(unmet)) || !Unanswered(err):
		stop()
		return nil, err
	default:
		fmt.Fprintln(errs, "rrl: Redis does not answer, another attempt follows each second: "+LastDefence(err.Error()))
		go l.keepTrying(ctx, errs)
	}
	return l, nil
}

// attempt connects once.
func (l *Link) attempt(ctx context.Context) error {
	s, err := Open(ctx, l.flags)
	if err != nil {
		l.reason.Store(&err)
		return err
	}
	l.server.Store(s)
	return nil
}

func (l *Link) keepTrying(ctx context.Context, errs io.Writer) {
	defer close(l.ended)
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
		err := l.attempt(ctx)
		if err == nil {
			fmt.Fprintln(errs, "rrl: "+l.server.Load().Where+" answers")
			return
		}
		if text := LastDefence(err.Error()); !Unanswered(err) && text != said && ctx.Err() == nil {
			fmt.Fprintln(errs, "rrl: "+text)
			said = text
		}
	}
}

// Close ends the attempts and all connections.
func (l *Link) Close() {
	l.stop()
	if s, err := l.Wait(); err == nil {
		s.Close()
	}
}

// Wait waits until the server has answered, the context of Dial has ended, or Close is called. It
// returns what Server returns.
func (l *Link) Wait() (*Server, error) {
	<-l.ended
	return l.Server()
}

// Server returns the server, or the error of the last attempt if it has not answered yet.
func (l *Link) Server() (*Server, error) {
	if s := l.server.Load(); s != nil {
		return s, nil
	}
	return nil, *l.reason.Load()
}

// Ping returns nil if the server answers now; of a cluster, if at least one master does.
func (l *Link) Ping(ctx context.Context) error {
	return l.probe(ctx, func(ctx context.Context, node redis.Cmdable) error { return node.Ping(ctx).Err() })
}

// Probed is the key of the probe of Writable.
const Probed = "{ratelimit:readyz}:permits"

// Writable returns nil if the server executes commands that write; of a cluster, if at least one
// master does. A replica does not, nor a server that is out of memory or cannot save. The probe
// changes nothing: a ZADD that adds no member. If the user may not write its key, an answer is
// enough.
func (l *Link) Writable(ctx context.Context) error {
	return l.probe(ctx, func(ctx context.Context, node redis.Cmdable) error {
		err := node.ZAddXX(ctx, Probed, redis.Z{Member: "readyz"}).Err()
		if redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "MOVED") { // another master has the slot
			return nil
		}
		return err
	})
}

// probe calls ask for the server, or for each master of a cluster: then one without an error is
// enough.
func (l *Link) probe(ctx context.Context, ask func(context.Context, redis.Cmdable) error) error {
	s, err := l.Server()
	if err != nil {
		return err
	}
	nodes, cluster := s.Redis.(*redis.ClusterClient)
	if !cluster {
		return s.Explain(ask(ctx, s.Redis))
	}
	var answered atomic.Bool
	err = nodes.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		err := ask(ctx, node)
		if err == nil {
			answered.Store(true)
		}
		return err
	})
	if answered.Load() {
		return nil
	}
	return s.Explain(err)
}
