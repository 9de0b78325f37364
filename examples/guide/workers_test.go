package guide

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func worker(ctx context.Context, mails *rratelimiter.Limiter, jobs <-chan string, send func(string)) {
	for job := range jobs {
		if err := permit(ctx, mails); err != nil {
			return
		}
		send(job)
	}
}

func TestWorkersKeepThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := limittest.NewRealTime(t)
		mails := server.Client().RateLimiter("mails", rratelimiter.WithRate(rratelimiter.PerSecond(2)))
		jobs := make(chan string, 6)
		for i := range cap(jobs) {
			jobs <- fmt.Sprint(i)
		}
		close(jobs)
		began := time.Now()
		sent := 0
		server.Fail("OOM command not allowed") // an error after which a call is not retried
		time.AfterFunc(500*time.Millisecond, func() { server.Fail("") })
		worker(t.Context(), mails, jobs, func(string) { sent++ })
		if took := time.Since(began); sent != 6 || took < 3*time.Second || took > 4*time.Second {
			t.Errorf("%d were sent in %v", sent, took)
		}
	})
}

func paced(client *rratelimiter.Client) *rratelimiter.Limiter {
	return client.RateLimiter("mails", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
}

// permit waits for a permit, also while Redis fails, or until somebody sets the rate.
func permit(ctx context.Context, mails *rratelimiter.Limiter) error {
	for {
		err := mails.Acquire(ctx, 1)
		pause := time.Second
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.Is(err, rratelimiter.ErrNotInitialized):
			slog.Error("set the rate: rrl set mails 10/s", "err", err)
			pause = 10 * time.Second
		default:
			slog.Warn("no permit, trying again", "err", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestWorkersOutliveALostRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, client := t.Context(), limittest.NewRealTime(t).Client()
		mails := paced(client)
		if err := mails.Acquire(ctx, 10); err != nil {
			t.Fatal(err)
		}
		if _, err := mails.Delete(ctx); err != nil {
			t.Fatal(err)
		}
		if err := mails.Acquire(ctx, 1); err != nil {
			t.Errorf("with WithRate: %v", err)
		}

		owned := client.RateLimiter("mails") // its owner sets the rate
		if _, err := owned.Delete(ctx); err != nil {
			t.Fatal(err)
		}
		if err := owned.Acquire(ctx, 1); !errors.Is(err, rratelimiter.ErrNotInitialized) {
			t.Errorf("without WithRate: %v", err)
		}
		began := time.Now()
		time.AfterFunc(5*time.Second, func() {
			if err := owned.SetRate(ctx, rratelimiter.PerSecond(10)); err != nil {
				t.Error(err)
			}
		})
		if err := permit(ctx, owned); err != nil || time.Since(began) < 5*time.Second ||
			time.Since(began) > 20*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, err := owned.Delete(ctx); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := permit(short, owned); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("at the end of its context: %v", err)
		}
	})
}

func sendInTime(ctx context.Context, mails *rratelimiter.Limiter, retryAt func(time.Time) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := mails.Acquire(ctx, 1) // of a limiter with WithFailFast
	var late *rratelimiter.NotInTimeError
	if errors.As(err, &late) {
		return retryAt(late.At) // not after 5 s, but as soon as it is known
	}
	return err
}

func TestAJobThatCannotBeSentInTime(t *testing.T) {
	server := limittest.New(t)
	mails := server.Client().RateLimiter("mails",
		rratelimiter.WithRate(rratelimiter.PerMinute(1)), rratelimiter.WithFailFast())
	var at time.Time
	for range 2 {
		if err := sendInTime(t.Context(), mails, func(free time.Time) error { at = free; return nil }); err != nil {
			t.Error(err)
		}
	}
	if !at.Equal(server.Now().Add(time.Minute)) {
		t.Errorf("free at %v", at)
	}
}

// sendBatch sends a batch of mails, or as many of them as it gets permits for, and keeps the
// others.
func sendBatch(ctx context.Context, client *rratelimiter.Client, batch []string, send func([]string),
	keep func([]string) error) error {
	mails := client.RateLimiter("mails",
		rratelimiter.WithRate(rratelimiter.PerSecond(20)), rratelimiter.WithInstalments())
	err := mails.Acquire(ctx, int64(len(batch)))
	var partly *rratelimiter.PartlyTakenError
	if errors.As(err, &partly) {
		send(batch[:partly.Taken]) // these have their permits
		return keep(batch[partly.Taken:])
	}
	if err == nil {
		send(batch)
	}
	return err
}

func TestABatchOfMoreMailsThanTheRate(t *testing.T) {
	for patience, want := range map[time.Duration]int{time.Minute: 200, 2500 * time.Millisecond: 60} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			began, sent, kept := time.Now(), 0, 0
			err := sendBatch(ctx, limittest.NewRealTime(t).Client(), make([]string, 200),
				func(mails []string) { sent += len(mails) },
				func(mails []string) error { kept += len(mails); return nil })
			if took := time.Since(began); err != nil || sent != want || kept != 200-want ||
				took != min(patience, 9*time.Second) {
				t.Errorf("%d mails are sent and %d kept after %v, %v", sent, kept, took, err)
			}
		})
	}
}

// sendMail sends a mail as soon as the limits of the provider and of the sender allow it.
func sendMail(ctx context.Context, client *rratelimiter.Client, from string, send func()) error {
	provider := client.RateLimiter("{mails}:provider", rratelimiter.WithRate(rratelimiter.PerSecond(50)))
	sender := client.RateLimiter("{mails}:sender:"+from, rratelimiter.WithRate(rratelimiter.PerMinute(20)))
	if err := client.AcquireAll(ctx, 1, provider, sender); err != nil {
		return err
	}
	send()
	return nil
}

// A sender without free permits waits, and takes no permit of the provider meanwhile: other senders
// get all of these.
func TestMailsWaitForTwoLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := limittest.NewRealTime(t).Client()
		began := time.Now()
		mail := func(from string, want time.Duration) {
			if err := sendMail(t.Context(), client, from, func() {}); err != nil {
				t.Error(err)
			}
			if took := time.Since(began).Truncate(time.Second); took != want {
				t.Errorf("a mail of %s after %v, not %v", from, took, want)
			}
		}
		for range 20 {
			mail("a", 0)
		}
		waits := make(chan struct{})
		go func() {
			defer close(waits)
			mail("a", time.Minute)
		}()
		synctest.Wait()
		if n := client.Waiting(); n["{mails}:provider"] != 1 || n["{mails}:sender:a"] != 1 {
			t.Errorf("waiting: %v", n)
		}
		for range 15 {
			mail("b", 0)
			mail("c", 0)
		}
		<-waits
	})
}

func callModel(ctx context.Context, client *rratelimiter.Client, size int64) error {
	requests := client.RateLimiter("{model}:requests", rratelimiter.WithRate(rratelimiter.PerMinute(60)))
	tokens := client.RateLimiter("{model}:tokens", rratelimiter.WithRate(rratelimiter.PerMinute(100_000)))
	err := client.AcquireAllN(ctx, []int64{1, size}, requests, tokens)
	return err
}

func TestCallsOfAModelWaitForTheirTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := limittest.NewRealTime(t).Client()
		began := time.Now()
		for _, want := range []time.Duration{0, time.Minute, time.Minute} {
			if err := callModel(t.Context(), client, 50_001); err != nil {
				t.Error(err)
			}
			if want > 0 {
				if took := time.Since(began).Truncate(time.Second); took != want {
					t.Errorf("after %v, not %v", took, want)
				}
			}
			began = time.Now()
		}
		if free, err := client.RateLimiter("{model}:requests").AvailablePermits(t.Context()); free != 59 || err != nil {
			t.Errorf("%d requests are free, %v", free, err)
		}
	})
}

// free returns the first account that has a free permit.
func free(ctx context.Context, accounts []*rratelimiter.Limiter) (*rratelimiter.Limiter, error) {
	for _, account := range accounts {
		result, err := account.Peek(ctx, 1)
		if err != nil {
			return nil, err
		}
		if result.Allowed {
			return account, nil // another process may take the permit first: Acquire or Allow decides
		}
	}
	return nil, errLater
}

func TestTheFirstAccountWithAFreePermit(t *testing.T) {
	ctx, client := t.Context(), limittest.New(t).Client()
	one := rratelimiter.WithRate(rratelimiter.PerMinute(1))
	accounts := []*rratelimiter.Limiter{client.RateLimiter("account:1", one), client.RateLimiter("account:2", one)}
	for _, want := range append(accounts, nil) {
		account, err := free(ctx, accounts)
		if account != want || (err == errLater) != (want == nil) {
			t.Fatalf("%v, %v", account, err)
		}
		if want != nil {
			if ok, err := account.TryAcquire(ctx, 1); !ok || err != nil {
				t.Errorf("%v, %v after a Peek", ok, err)
			}
		}
	}
}

var errLater = errors.New("not now")

func patient(ctx context.Context, mails *rratelimiter.Limiter, send func()) error {
	ok, err := mails.TryAcquireTimeout(ctx, 1, 5*time.Second)
	if err != nil {
		return err
	}
	if !ok {
		return errLater // known at once if 5 s are not enough
	}
	send()
	return nil
}

func batch(ctx context.Context, mails *rratelimiter.Limiter, waiting []string, send func([]string)) ([]string, error) {
	n, err := mails.AcquireUpTo(ctx, int64(len(waiting)))
	if err != nil {
		return waiting, err
	}
	send(waiting[:n])
	return waiting[n:], nil
}

func TestWorkersTakeWhatIsFree(t *testing.T) {
	mails := limittest.New(t).Client().RateLimiter("mails", rratelimiter.WithRate(rratelimiter.PerMinute(3)))
	sent := 0
	if err := patient(t.Context(), mails, func() { sent++ }); err != nil {
		t.Fatal(err)
	}
	left, err := batch(t.Context(), mails, []string{"a", "b", "c"}, func(now []string) { sent += len(now) })
	if err != nil || sent != 3 || len(left) != 1 {
		t.Errorf("%d sent, %q left: %v", sent, left, err)
	}
	if err := patient(t.Context(), mails, func() { sent++ }); err != errLater {
		t.Errorf("with nothing free: %v", err)
	}
}
