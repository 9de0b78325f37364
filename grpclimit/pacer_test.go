package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/grpclimit"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A remote is the service behind a Pacer. It stands for a connection, so that time is exact.
type remote struct {
	mu    sync.Mutex
	began time.Time
	times []time.Duration // of the calls, since it began; guarded by mu
	next  error           // error of the next call; guarded by mu
}

func newRemote() *remote { return &remote{began: time.Now()} }

// answer records a call, and returns its error.
func (r *remote) answer() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = append(r.times, time.Since(r.began))
	err := r.next
	r.next = nil
	return err
}

func (r *remote) call(ctx context.Context, p *grpclimit.Pacer) error {
	return p.Unary(
		ctx,
		"/a/B",
		nil,
		nil,
		nil,
		func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			return r.answer()
		},
	)
}

// stream opens a stream, and receives a message. The error comes when it opens, or later.
func (r *remote) stream(ctx context.Context, p *grpclimit.Pacer, later bool) error {
	s, err := p.Stream(
		ctx,
		nil,
		nil,
		"/a/B",
		func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string,
			...grpc.CallOption) (grpc.ClientStream, error) {
			err := r.answer()
			if later || err == nil {
				return ended{err: err}, nil
			}
			return nil, err
		},
	)
	if err != nil {
		return err
	}
	return s.RecvMsg(nil)
}

// An ended stream has no messages.
type ended struct {
	grpc.ClientStream
	err error
}

func (e ended) RecvMsg(any) error {
	if e.err != nil {
		return e.err
	}
	return io.EOF
}

// asking returns an error that asks for a pause, unless the delay is 0.
func asking(code codes.Code, delay time.Duration) error {
	s := status.New(code, "later")
	if delay != 0 {
		s, _ = s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	}
	return s.Err()
}

func TestOutgoingCallsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := limittest.NewRealTime(t).Client().RateLimiter("api",
			rratelimiter.WithRate(rratelimiter.PerSecond(2)))
		p, r := &grpclimit.Pacer{Limiter: limiter}, newRemote()
		for range 3 {
			if err := r.call(t.Context(), p); err != nil {
				t.Error(err)
			}
			if err := r.stream(t.Context(), p, false); err != io.EOF {
				t.Error(err)
			}
		}
		for i, at := range r.times {
			if want := time.Duration(i/2) * time.Second; at < want || at > want+100*time.Millisecond {
				t.Errorf("call %d after %v, not %v", i, at, want)
			}
		}
	})
}

func TestCallsPauseForADelay(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want time.Duration
	}{
		"exhausted":            {asking(codes.ResourceExhausted, 30*time.Second), 30 * time.Second},
		"unavailable":          {asking(codes.Unavailable, 30*time.Second), 30 * time.Second},
		"short":                {asking(codes.ResourceExhausted, 5*time.Millisecond), 5 * time.Millisecond},
		"too long":             {asking(codes.ResourceExhausted, time.Hour), time.Minute},
		"no delay":             {asking(codes.ResourceExhausted, 0), 0},
		"negative":             {asking(codes.ResourceExhausted, -time.Second), 0},
		"another code":         {asking(codes.Internal, 30*time.Second), 0},
		"no status at all":     {errors.New("later"), 0},
		"exhausted, in a wrap": {errors.Join(asking(codes.ResourceExhausted, 30*time.Second)), 30 * time.Second},
	} {
		for kind, call := range map[string]func(*remote, *grpclimit.Pacer) error{
			"unary": func(r *remote, p *grpclimit.Pacer) error { return r.call(context.Background(), p) },
			"stream, at once": func(r *remote, p *grpclimit.Pacer) error {
				return r.stream(context.Background(), p, false)
			},
			"stream, later": func(r *remote, p *grpclimit.Pacer) error {
				return r.stream(context.Background(), p, true)
			},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					client := limittest.NewRealTime(t).Client()
					limiter := client.RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
					p, r := &grpclimit.Pacer{Limiter: limiter}, newRemote()
					r.next = c.err
					if err := call(r, p); !errors.Is(err, c.err) {
						t.Errorf("%v, not %v", err, c.err)
					}
					if err := r.call(t.Context(), p); err != nil {
						t.Error(err)
					}
					if took := r.times[1] - r.times[0]; took < c.want || took > c.want+200*time.Millisecond {
						t.Errorf("after %v, not %v", took, c.want)
					}
					time.Sleep(time.Second) // until the permits are given back
				})
			})
		}
	}
}

// MaxPause bounds a pause, in which other processes find no permits.
func TestPauseOfOtherProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limittest.NewRealTime(t)
		limiter := s.Client().RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerHour(10)))
		p, r := &grpclimit.Pacer{Limiter: limiter, MaxPause: 10 * time.Second}, newRemote()
		r.next = asking(codes.ResourceExhausted, time.Hour)
		if err := r.call(t.Context(), p); status.Code(err) != codes.ResourceExhausted {
			t.Error(err)
		}
		other := s.Client().RateLimiter("api")
		for _, want := range []bool{false, true} {
			time.Sleep(9 * time.Second)
			if ok, err := other.TryAcquire(t.Context(), 1); ok != want || err != nil {
				t.Errorf("%v, %v, not %v", ok, err, want)
			}
		}
	})
}

// A call that would get no permit before its deadline fails at once, if the limiter fails fast.
func TestCallThatCannotBeInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := limittest.NewRealTime(t).Client().RateLimiter(
			"api", rratelimiter.WithRate(rratelimiter.PerHour(1)), rratelimiter.WithFailFast())
		p, r := &grpclimit.Pacer{Limiter: limiter}, newRemote()
		if err := r.call(t.Context(), p); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := r.call(ctx, p)
		var late *rratelimiter.NotInTimeError
		if status.Code(err) != codes.DeadlineExceeded || !errors.As(err, &late) || ctx.Err() != nil {
			t.Errorf("%v, not a late one with %v", err, codes.DeadlineExceeded)
		}
	})
}

// A call that gets no permit is not sent, and fails with a status that wraps the reason.
func TestCallThatGetsNoPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limittest.NewRealTime(t)
		p, r := &grpclimit.Pacer{
			Limiter: s.Client().RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerHour(1))),
		}, newRemote()
		if err := r.call(t.Context(), p); err != nil {
			t.Error(err)
		}
		late, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		gone, leave := context.WithCancel(t.Context())
		leave()
		for _, c := range []struct {
			ctx  context.Context
			fail string
			code codes.Code
			is   error
		}{
			{late, "", codes.DeadlineExceeded, context.DeadlineExceeded},
			{gone, "", codes.Canceled, context.Canceled},
			{
				t.Context(),
				"LOADING Redis is loading the dataset in memory",
				codes.Unavailable,
				rratelimiter.ErrUnavailable,
			},
		} {
			s.Fail(c.fail)
			for _, err := range []error{r.call(c.ctx, p), r.stream(c.ctx, p, false)} {
				if status.Code(err) != c.code || !errors.Is(err, c.is) {
					t.Errorf("%v, not %v", err, c.code)
				}
			}
			s.Fail("")
		}
		if len(r.times) != 1 {
			t.Errorf("%d calls were sent", len(r.times))
		}
	})
}
