package script

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A node refuses connections if its host says so, however the Redis client reaches it. The process
// may also fail to dial.
func TestRefuses(t *testing.T) {
	refused, full := dialError(syscall.ECONNREFUSED), dialError(syscall.EMFILE)
	for _, of := range []struct {
		// with which the Dialer of the options, and a hook around it, fail; nil: there is no hook
		options, hook error
		want          bool
	}{
		{options: refused, want: true},
		{options: fmt.Errorf("through a tunnel: %w", refused), want: true},
		{options: dialError(windowsRefused), want: true},
		{options: full},
		{options: dialError(syscall.EADDRNOTAVAIL)},
		{options: &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}}},
		{options: refused, hook: full},
		{options: full, hook: refused, want: true},
	} {
		rdb := redis.NewClient(&redis.Options{
			Addr:          "127.0.0.1:1",
			Dialer:        func(context.Context, string, string) (net.Conn, error) { return nil, of.options },
			DialerRetries: 1,
		})
		if of.hook != nil {
			rdb.AddHook(dialHook{of.hook})
		}
		if got := NewTopology(rdb).Refuses(t.Context(), New("return 1"), []string{"k"}); got != of.want {
			t.Errorf("options %v, hook %v: %v, expected %v", of.options, of.hook, got, of.want)
		}
		_ = rdb.Close()
	}
}

func dialError(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }

// A dialHook dials by itself, and fails with err.
type dialHook struct{ err error }

func (d dialHook) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, d.err }
}

func (dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (dialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
