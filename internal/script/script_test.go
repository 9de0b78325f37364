package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// Replies of Redis are final, except replies that it cannot serve any client now.
func TestUnreachable(t *testing.T) {
	server := func(text string) error { return ServerError(redisError(text)) }
	for _, of := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true},
		{io.EOF, true},
		{fmt.Errorf("read: %w", syscall.ECONNRESET), true},
		{Late(time.Second), true},
		{os.ErrDeadlineExceeded, true},
		{redis.ErrPoolTimeout, true},
		{server("LOADING Redis is loading the dataset in memory"), true},
		{server("READONLY You can't write against a read only replica."), true},
		{
			server("ERR Error running script (call to f_1): @user_script:3: READONLY You can't write against a read only replica."),
			true,
		},
		{server("CLUSTERDOWN The cluster is down"), true},
		{server("TRYAGAIN Multiple keys request during rehashing of slot"), true},
		{server("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."), true},
		{server("BUSY Redis is busy running a "), true},
		{server("ERR max number of clients reached"), true},
		{redis.ErrClosed, false},
		{fmt.Errorf("%w: it has no rate", ErrNotInitialized), false},
		{server("WRONGTYPE Operation against a key holding the wrong kind of value"), false},
		{server("OOM command not allowed when used memory > 'maxmemory'."), false},
		{server("MISCONF Redis is configured to save RDB snapshots"), false},
		{server("NOPERM this user has no permissions"), false},
		{server("NOAUTH Authentication required."), false},
		{server("CROSSSLOT Keys in request don't hash to the same slot"), false},
	} {
		if got := Unreachable(of.err); got != of.want {
			t.Errorf("%v: %v, expected %v", of.err, got, of.want)
		}
	}
}

type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

// TestAttemptsOfACall: whether the outcome of a call is unknown depends on all its attempts.
func TestAttemptsOfACall(t *testing.T) {
	answer := redis.ErrNoScript
	for name, test := range map[string]struct {
		attempts []error
		written  []bool
		last     error
		unknown  bool
	}{
		"never written":                      {[]error{io.EOF}, []bool{false}, io.EOF, false},
		"written":                            {[]error{io.EOF}, []bool{true}, io.EOF, true},
		"refused by the server":              {[]error{answer}, []bool{true}, answer, false},
		"lost, then refused":                 {[]error{io.EOF, answer}, []bool{true, true}, answer, true},
		"lost, then never written":           {[]error{io.EOF, io.EOF}, []bool{true, false}, io.EOF, true},
		"lost, then without a rate":          {[]error{io.EOF, nil}, []bool{true, true}, ErrNotInitialized, false},
		"lost, then answered":                {[]error{io.EOF, nil}, []bool{true, true}, nil, false},
		"refused, then lost":                 {[]error{answer, io.EOF}, []bool{true, true}, io.EOF, true},
		"refused, then never written":        {[]error{answer, io.EOF}, []bool{true, false}, io.EOF, false},
		"answered after its caller's time":   {[]error{nil}, []bool{true}, context.DeadlineExceeded, true},
		"answered, then never written":       {[]error{nil, io.EOF}, []bool{true, false}, io.EOF, false},
		"what another attempt got is untold": {[]error{io.EOF, nil}, []bool{true, true}, ErrUntold, true},
	} {
		var sent Attempts
		for i, err := range test.attempts {
			sent.Begin(5)
			if test.written[i] {
				if _, err := sent.MarshalBinary(); err != nil {
					t.Error(err)
				}
			}
			sent.End(err)
		}
		err := sent.Outcome(test.last)
		if errors.Is(err, ErrOutcomeUnknown) != test.unknown || !errors.Is(err, test.last) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := sent.MarshalBinary(); err == nil {
			t.Errorf("%s: written after its end", name)
		}
	}
}

// A command is not written if one of the calls in its pipeline is over. The others are repeated,
// also if the process could decide on them, unless that could take effect twice.
func TestACallThatIsOverStopsNoOther(t *testing.T) {
	over := new(Attempts)
	_ = over.Outcome(nil)
	_, err := over.MarshalBinary()
	for _, of := range []struct{ written, idempotent, again bool }{
		{false, false, true}, {false, true, true}, {true, false, false}, {true, true, true},
	} {
		call := &Attempts{NoRetryIfUnsent: true}
		call.Begin(5)
		if of.written {
			_, _ = call.MarshalBinary()
		}
		call.End(err)
		if got := call.Again(err, of.idempotent); got != of.again {
			t.Errorf("%+v: %v", of, got)
		}
	}
	if over.Again(err, true) {
		t.Error("the call that is over is repeated")
	}
	if IsOfNode(err) || IsOfNode(redisError("TRYAGAIN")) || !IsOfNode(io.EOF) {
		t.Error("only the error of a connection tells that the node is away")
	}
}

// A call to a slow server makes no attempt that cannot end in time, and returns the server's last
// error.
func TestNoAttemptThatCannotEnd(t *testing.T) {
	for _, took := range []time.Duration{0, time.Millisecond, 60 * time.Millisecond, 300 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began, attempts := time.Now(), 0
			var pauses Backoff
			for {
				attempts++
				time.Sleep(took)
				if !pauses.Rest(ctx) {
					break
				}
			}
			if left := time.Second - time.Since(began); attempts < 3 || left < 0 || left > longestPause+took {
				t.Errorf("attempts of %v: %d, and then %v are left", took, attempts, left)
			}
		})
	}
}

// TestSupply: a script that the server lacks is loaded once, and sent with its text if that does
// not help.
func TestSupply(t *testing.T) {
	for name, test := range map[string]struct {
		refused bool
		lacking int // commands that the server answers with NOSCRIPT
		want    string
	}{
		"it has it":                  {false, 0, "sha"},
		"it gets it":                 {false, 1, "sha load sha"},
		"it does not take it":        {true, 1, "sha load text"},
		"it got it and lost it":      {false, 2, "sha load sha text"},
		"others behind the text":     {false, 3, "sha load sha text text"},
		"refused, others behind one": {true, 2, "sha load text text"},
	} {
		var log []string
		Supply(func() error {
			log = append(log, "load")
			if test.refused {
				return errors.New("NOPERM")
			}
			return nil
		}, func(text bool) bool {
			log = append(log, map[bool]string{true: "text", false: "sha"}[text])
			test.lacking--
			return test.lacking >= 0
		})
		if got := strings.Join(log, " "); got != test.want {
			t.Errorf("%s: %s, expected %s", name, got, test.want)
		}
	}
}

// TestAwaitTakesAReplyThatHasArrived has one processor, which reads the reply until just after the
// time of the call is over.
func TestAwaitTakesAReplyThatHasArrived(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const timeout = 50 * time.Millisecond
	got, err := Await(t.Context(), timeout, timeout, nil, func(context.Context) (int, error) {
		for began := time.Now(); time.Since(began) < timeout+5*time.Millisecond; {
		}
		return 7, nil
	})
	if got != 7 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
}
