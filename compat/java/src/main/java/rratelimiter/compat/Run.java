package rratelimiter.compat;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RRateLimiter;

/**
 * The command {@code run} lets threads acquire for a while and logs their grants.
 *
 * <pre>
 * run NAME blocked|unblocked [threads=1] [for=1000] [min=1] [max=1] [at=EPOCHMS] [pause=2]
 * [grace=5000] [seed=N]
 * </pre>
 *
 * Blocked threads call acquire(n), unblocked ones tryAcquire(n) with a pause after each refusal; n
 * is drawn from min to max for each grant. {@code at} lets several processes start together. Each
 * grant writes a line {@code grant THREAD PERMITS START END}, with times in microseconds since
 * 1970: the granted call began at START and had returned by END. A call that fails writes
 * {@code fault THREAD CLASS MESSAGE}. After {@code for} ms no new call begins. Blocked calls have
 * {@code grace} ms to return; then they are interrupted and counted as unfinished: they may have
 * taken permits that the log does not show, or may still take them.
 */
final class Run {
    private boolean blocked;
    private int threads = 1;
    private long millis = 1000;
    private long min = 1;
    private long max = 1;
    private long at;
    private long pause = 2;
    private long grace = 5000;
    private long seed = System.nanoTime();

    private final AtomicLong grants = new AtomicLong();
    private final AtomicLong permits = new AtomicLong();
    private final AtomicLong denied = new AtomicLong();
    private final AtomicLong faults = new AtomicLong();
    private final AtomicLong unfinished = new AtomicLong();
    private volatile boolean abandoned;

    private Run() {
    }

    static Run parse(Commands.Args args) {
        Run run = new Run();
        String mode = args.text("blocked or unblocked");
        if (!mode.equals("blocked") && !mode.equals("unblocked")) {
            throw new IllegalArgumentException("blocked or unblocked, not " + mode);
        }
        run.blocked = mode.equals("blocked");
        while (!args.end()) {
            String word = args.text("a setting");
            int equals = word.indexOf('=');
            if (equals < 0) {
                throw new IllegalArgumentException("a setting has the form key=number, not " + word);
            }
            long value = Words.number(word.substring(equals + 1));
            switch (word.substring(0, equals)) {
                case "threads" -> run.threads = (int) value;
                case "for" -> run.millis = value;
                case "min" -> run.min = value;
                case "max" -> run.max = value;
                case "at" -> run.at = value;
                case "pause" -> run.pause = value;
                case "grace" -> run.grace = value;
                case "seed" -> run.seed = value;
                default -> throw new IllegalArgumentException("unknown setting " + word);
            }
        }
        run.max = Math.max(run.min, run.max);
        return run;
    }

    String go(RRateLimiter limiter, Harness.Reply reply) throws InterruptedException {
        long begin = Math.max(at, System.currentTimeMillis());
        long end = begin + millis;
        SplittableRandom random = new SplittableRandom(seed);
        List<Thread> workers = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            int number = i;
            SplittableRandom own = random.split();
            Thread thread = new Thread(() -> work(limiter, reply, number, own, begin, end), "run " + i);
            thread.setDaemon(true);
            workers.add(thread);
            thread.start();
        }
        try {
            long last = end + grace;
            for (Thread thread : workers) {
                thread.join(Math.max(1, last - System.currentTimeMillis()));
            }
        } finally {
            // This also runs when the command is cancelled.
            abandoned = true;
            for (Thread thread : workers) {
                if (thread.isAlive()) {
                    unfinished.incrementAndGet();
                    thread.interrupt();
                }
            }
        }
        return "grants=" + grants + " permits=" + permits + " denied=" + denied + " faults=" + faults
                + " unfinished=" + unfinished + " begin=" + begin + " end=" + System.currentTimeMillis();
    }

    private void work(RRateLimiter limiter, Harness.Reply reply, int number, SplittableRandom random, long begin, long end) {
        try {
            // Opens this thread's connection, so that the first call measures the limiter alone.
            limiter.isExists();
            sleepUntil(begin);
            long n = random.nextLong(min, max + 1);
            while (System.currentTimeMillis() < end && !abandoned) {
                try {
                    long start = now();
                    boolean granted = blocked;
                    if (blocked) {
                        limiter.acquire(n);
                    } else {
                        granted = limiter.tryAcquire(n);
                    }
                    long stop = now();
                    if (abandoned) {
                        return;
                    }
                    if (granted) {
                        grants.incrementAndGet();
                        permits.addAndGet(n);
                        reply.line("grant " + number + " " + n + " " + start + " " + stop);
                        n = random.nextLong(min, max + 1);
                    } else {
                        denied.incrementAndGet();
                        Thread.sleep(pause);
                    }
                } catch (RuntimeException e) {
                    if (abandoned) {
                        return;
                    }
                    faults.incrementAndGet();
                    reply.line("fault " + number + " " + Harness.failure(e).substring("error ".length()));
                    Thread.sleep(Math.max(pause, 20));
                }
            }
        } catch (InterruptedException e) {
            // The run is over.
        }
    }

    private static void sleepUntil(long millis) throws InterruptedException {
        for (long rest = millis - System.currentTimeMillis(); rest > 0; rest = millis - System.currentTimeMillis()) {
            Thread.sleep(rest);
        }
    }

    private static long now() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }
}
