package workers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/riverqueue/river/rivertype"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/examples/workers"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestQueueAtTheLimitersPace(t *testing.T) {
	const tasks, permits = 8, 3
	s := redistest.Shared(t)
	limiter := rratelimiter.NewClient(s.Client(), rratelimiter.WithCallTimeout(10*time.Second)).
		RateLimiter("mails", rratelimiter.WithRate(rratelimiter.PerHour(permits)))
	connection := asynq.RedisClientOpt{Addr: s.Addr, DB: s.DB}
	queue := asynq.NewClient(connection)
	t.Cleanup(func() { queue.Close() })
	for i := range tasks {
		if _, err := queue.Enqueue(asynq.NewTask("mail", fmt.Append(nil, i)), asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
	}

	var done atomic.Int64
	mux := asynq.NewServeMux()
	mux.Use(workers.Paced(limiter, 10*time.Second)) // a refusal for longer is known at once
	mux.HandleFunc("mail", func(context.Context, *asynq.Task) error {
		done.Add(1)
		return nil
	})
	server := asynq.NewServer(
		connection, workers.Config(asynq.Config{Concurrency: 4, LogLevel: asynq.FatalLevel}, time.Hour),
	)
	if err := server.Start(mux); err != nil {
		t.Fatal(err)
	}
	inspector := asynq.NewInspector(connection)
	t.Cleanup(func() { inspector.Close() })
	var back []*asynq.TaskInfo
	for deadline := time.Now().Add(time.Minute); len(back) < tasks-permits &&
		time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		back, _ = inspector.ListRetryTasks("default") // an error until the queue is known
	}
	server.Shutdown()
	if n := done.Load(); n != permits || len(back) != tasks-permits {
		t.Fatalf("%d tasks were done and %d put back", n, len(back))
	}
	for _, task := range back {
		if task.Retried != 0 || time.Until(task.NextProcessAt) < 50*time.Minute {
			t.Errorf("task %s failed %d times and comes back at %v", task.Payload, task.Retried, task.NextProcessAt)
		}
	}
}

func TestPoolAtTheLimitersPace(t *testing.T) {
	s := limittest.New(t)
	limiter := s.Client().RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerMinute(3)))
	jobs := make(chan int, 7)
	for i := range cap(jobs) {
		jobs <- i
	}
	close(jobs)
	done := make(chan int, cap(jobs))
	ended := make(chan error)
	go func() {
		left, err := workers.Run(t.Context(), limiter, 2, jobs, func(_ context.Context, job int) { done <- job })
		if len(left) > 0 {
			t.Errorf("left %v", left)
		}
		ended <- err
	}()
	for _, waiting := range []int{2, 1} {
		for range 3 {
			<-done
		}
		s.AwaitWaiting("jobs", waiting)
		if len(done) > 0 {
			t.Fatalf("more than 3 jobs done in a minute: %d", <-done)
		}
		s.Advance(time.Minute)
	}
	if err := <-ended; err != nil || len(done) != 1 {
		t.Errorf("%d jobs done in the end, %v", len(done), err)
	}
}

func TestPoolGivesBackWhatItDidNotDo(t *testing.T) {
	s := limittest.New(t)
	limiter := s.Client().RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	ctx, cancel := context.WithCancel(t.Context())
	jobs := make(chan int, 5)
	for i := range cap(jobs) {
		jobs <- i
	}
	var done []int
	type end struct {
		left []int
		err  error
	}
	ended := make(chan end)
	go func() {
		left, err := workers.Run(ctx, limiter, 1, jobs, func(_ context.Context, job int) { done = append(done, job) })
		ended <- end{left, err}
	}()
	s.AwaitWaiting("jobs", 1)
	cancel()
	e := <-ended
	if !slices.Equal(done, []int{0}) || !slices.Equal(e.left, []int{1}) || len(jobs) != 3 ||
		!errors.Is(e.err, context.Canceled) {
		t.Errorf("done %v, left %v, %d in the channel, %v", done, e.left, len(jobs), e.err)
	}
}

func TestConfigKeepsWhatItsOwnerDecides(t *testing.T) {
	mild := errors.New("mild")
	c := workers.Config(asynq.Config{
		IsFailure:      func(err error) bool { return !errors.Is(err, mild) },
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 7 * time.Second },
	}, time.Hour)
	task := asynq.NewTask("mail", nil)
	if delay := c.RetryDelayFunc(1, mild, task); c.IsFailure(mild) || !c.IsFailure(errors.New("grave")) ||
		delay != 7*time.Second {
		t.Errorf("the owner's functions are not asked: a delay of %v", delay)
	}
	l := limittest.New(t).Client().RateLimiter("mails", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	paced := workers.Paced(l, time.Nanosecond)(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		return nil
	}))
	if err := paced.ProcessTask(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	err := paced.ProcessTask(t.Context(), task)
	if delay := c.RetryDelayFunc(1, err, task); err == nil || c.IsFailure(err) || delay != time.Hour {
		t.Errorf("without a permit: %v, again after %v", err, delay)
	}
}

// A job of river without a permit comes back when permits are free.
func TestJobsOfRiver(t *testing.T) {
	s := limittest.New(t)
	limiter := s.Client().RateLimiter("mails", rratelimiter.WithRate(rratelimiter.PerMinute(2)))
	paced, done := workers.Snoozed(limiter), 0
	work := func() error {
		return paced.Work(t.Context(), &rivertype.JobRow{}, func(context.Context) error { done++; return nil })
	}
	for range 2 {
		if err := work(); err != nil {
			t.Fatal(err)
		}
	}
	s.Advance(15 * time.Second)
	var snooze *rivertype.JobSnoozeError
	if err := work(); !errors.As(err, &snooze) || snooze.Duration != 45*time.Second || done != 2 {
		t.Errorf("the third job: %v, %d done", err, done)
	}
	s.Advance(59*time.Second/2 + 15*time.Second)
	if err := work(); !errors.As(err, &snooze) || snooze.Duration != time.Second {
		t.Errorf("half a second before: %v", err)
	}
	s.Advance(time.Second)
	if err := work(); err != nil || done != 3 {
		t.Errorf("a minute later: %v, %d done", err, done)
	}
	s.Fail("OOM command not allowed")
	if err := work(); err == nil || errors.As(err, &snooze) {
		t.Errorf("while Redis fails: %v", err)
	}
}

func TestPoolOutlivesAStumble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limittest.NewRealTime(t)
		limiter := s.Client().RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerMinute(100)))
		s.Fail("OOM command not allowed") // an error after which a call is not retried
		time.AfterFunc(time.Minute, func() { s.Fail("") })
		jobs := make(chan int)
		go func() {
			defer close(jobs)
			for i := range 10 {
				jobs <- i
			}
		}()
		var done atomic.Int64
		left, err := workers.Run(t.Context(), limiter, 2, jobs, func(context.Context, int) { done.Add(1) })
		if err != nil || len(left) > 0 || done.Load() != 10 {
			t.Errorf("%d done, %v left, %v", done.Load(), left, err)
		}
	})
}

func TestPoolEndsAsAWholeWhenItCanNeverGoOn(t *testing.T) {
	limiter := limittest.New(t).Client().RateLimiter("jobs") // has no rate
	jobs := make(chan int, 1)
	jobs <- 7
	left, err := workers.Run(t.Context(), limiter, 2, jobs, func(context.Context, int) { t.Error("a job was done") })
	if !slices.Equal(left, []int{7}) || !errors.Is(err, rratelimiter.ErrNotInitialized) {
		t.Errorf("left %v, %v", left, err)
	}
}
