package com.google.common.util.concurrent;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;

/**
 * Runs real RateLimiters on a clock that only moves on command. It is in Guava's package because a
 * limiter's clock can only be set from there.
 *
 * <p>Each input line is a command; the answer is a line with microseconds, {@code true} or
 * {@code false}, or {@code ok}:
 *
 * <pre>
 * bursty RATE            creates a limiter and sets the clock to zero
 * warming RATE MICROS    the same, with a warm-up period
 * at MICROS              moves the clock
 * reserve PERMITS        how long the caller has to wait
 * try PERMITS            tryAcquire
 * rate RATE              setRate
 * </pre>
 */
public final class Harness {
    private static final class Clock extends RateLimiter.SleepingStopwatch {
        long micros;

        @Override
        protected long readMicros() {
            return micros;
        }

        @Override
        protected void sleepMicrosUninterruptibly(long wait) {
        }
    }

    private Harness() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        Clock clock = new Clock();
        RateLimiter limiter = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            Object answer = "ok";
            switch (words[0]) {
                case "bursty" -> {
                    clock = new Clock();
                    limiter = RateLimiter.create(Double.parseDouble(words[1]), clock);
                }
                case "warming" -> {
                    clock = new Clock();
                    limiter = RateLimiter.create(
                            Double.parseDouble(words[1]), Long.parseLong(words[2]), TimeUnit.MICROSECONDS, 3.0, clock);
                }
                case "at" -> clock.micros = Long.parseLong(words[1]);
                case "reserve" -> answer = limiter.reserve(Integer.parseInt(words[1]));
                case "try" -> answer = limiter.tryAcquire(Integer.parseInt(words[1]));
                case "rate" -> limiter.setRate(Double.parseDouble(words[1]));
                default -> throw new IllegalArgumentException(line);
            }
            out.print(answer + "\n");
        }
        out.flush();
    }
}
