package rratelimiter.compat;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.HdrHistogram.Histogram;
import org.redisson.api.RRateLimiter;

/**
 * The command {@code bench} measures the speed of Redisson's limiter.
 *
 * <pre>
 * bench NAME sync|async|blocked [callers=1] [for=1000]
 * </pre>
 *
 * Sync callers are threads that call tryAcquire(1) repeatedly for {@code for} ms. Async callers are
 * no threads: they keep {@code callers} calls of tryAcquireAsync(1) in flight during that time.
 * Each sync or async caller calls at least once. Blocked callers are threads that call acquire(1)
 * once, all at the same moment. The answer is {@code requests=N granted=N nanos=N p50=N p99=N}: the
 * total time and percentiles of the time of a call, in ns. A failed call ends the bench with its
 * error.
 */
final class Bench {
    private static final long LONGEST = 3_600_000_000_000L;

    private final String mode;
    private int callers = 1;
    private long millis = 1000;

    private final AtomicLong granted = new AtomicLong();
    private final AtomicReference<Throwable> fault = new AtomicReference<>();
    private final List<Histogram> latencies = new ArrayList<>();
    private volatile long end;

    private Bench(String mode) {
        this.mode = mode;
    }

    static Bench parse(Commands.Args args) {
        Bench bench = new Bench(args.text("sync, async or blocked"));
        while (!args.end()) {
            String[] word = args.text("a setting").split("=", 2);
            long value = Words.number(word[word.length - 1]);
            switch (word[0]) {
                case "callers" -> bench.callers = (int) value;
                case "for" -> bench.millis = value;
                default -> throw new IllegalArgumentException("unknown setting " + word[0]);
            }
        }
        return bench;
    }

    String go(RRateLimiter limiter) throws InterruptedException {
        for (int i = 0; i < callers; i++) {
            latencies.add(new Histogram(1000, LONGEST, 2));
        }
        long begin = switch (mode) {
            case "sync" -> threads(latency -> {
                do {
                    long start = System.nanoTime();
                    count(latency, start, limiter.tryAcquire(1));
                } while (System.nanoTime() - end < 0 && fault.get() == null);
            });
            case "blocked" -> threads(latency -> {
                long start = System.nanoTime();
                limiter.acquire(1);
                count(latency, start, true);
            });
            case "async" -> {
                long start = System.nanoTime();
                end = start + millis * 1_000_000;
                CountDownLatch running = new CountDownLatch(callers);
                latencies.forEach(latency -> keepInFlight(limiter, latency, running));
                running.await();
                yield start;
            }
            default -> throw new IllegalArgumentException("sync, async or blocked, not " + mode);
        };
        long nanos = System.nanoTime() - begin;
        if (fault.get() != null) {
            throw new IllegalStateException("a call failed", fault.get());
        }
        Histogram all = new Histogram(1000, LONGEST, 2);
        latencies.forEach(all::add);
        return "requests=" + all.getTotalCount() + " granted=" + granted + " nanos=" + nanos
                + " p50=" + all.getValueAtPercentile(50) + " p99=" + all.getValueAtPercentile(99);
    }

    /**
     * Runs a caller in a thread for each histogram, waits for all, and returns their start in ns of
     * nanoTime.
     */
    private long threads(Caller caller) throws InterruptedException {
        CountDownLatch ready = new CountDownLatch(callers);
        CountDownLatch go = new CountDownLatch(1);
        CountDownLatch over = new CountDownLatch(callers);
        for (Histogram latency : latencies) {
            Thread thread = new Thread(() -> {
                try {
                    ready.countDown();
                    go.await();
                    caller.run(latency);
                } catch (InterruptedException | RuntimeException e) {
                    fault.compareAndSet(null, e);
                } finally {
                    over.countDown();
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        ready.await();
        long start = System.nanoTime();
        end = start + millis * 1_000_000;
        go.countDown();
        over.await();
        return start;
    }

    private interface Caller {
        void run(Histogram latency) throws InterruptedException;
    }

    /** Keeps one call in flight until the time is over. */
    private void keepInFlight(RRateLimiter limiter, Histogram latency, CountDownLatch running) {
        long start = System.nanoTime();
        limiter.tryAcquireAsync(1).whenComplete((yes, failure) -> {
            if (failure != null) {
                fault.compareAndSet(null, failure);
            } else {
                count(latency, start, yes);
            }
            if (fault.get() == null && System.nanoTime() - end < 0) {
                keepInFlight(limiter, latency, running);
            } else {
                running.countDown();
            }
        });
    }

    private void count(Histogram latency, long start, boolean yes) {
        latency.recordValue(Math.min(System.nanoTime() - start, LONGEST));
        if (yes) {
            granted.incrementAndGet();
        }
    }
}
