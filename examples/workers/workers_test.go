package workers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

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
	mux.Use(workers.Paced(limiter, time.Millisecond))
	mux.HandleFunc("mail", func(context.Context, *asynq.Task) error {
		done.Add(1)
		return nil
	})
	server := asynq.NewServer(connection, workers.Config(asynq.Config{Concurrency: 4, LogLevel: asynq.FatalLevel}, time.Hour))
	if err := server.Start(mux); err != nil {
		t.Fatal(err)
	}
	inspector := asynq.NewInspector(connection)
	t.Cleanup(func() { inspector.Close() })
	var back []*asynq.TaskInfo
	for deadline := time.Now().Add(time.Minute); len(back) < tasks-permits && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
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
	if !slices.Equal(done, []int{0}) || !slices.Equal(e.left, []int{1}) || len(jobs) != 3 || !errors.Is(e.err, context.Canceled) {
		t.Errorf("done %v, left %v, %d in the channel, %v", done, e.left, len(jobs), e.err)
	}
}
