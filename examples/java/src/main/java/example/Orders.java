package example;

import java.time.Duration;
import java.time.Instant;
import java.time.LocalTime;
import java.time.temporal.ChronoUnit;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Ships orders, and mails invoices while there are permits. The limiter "orders" is shared with the
 * Go program, main.go. Arguments: the address of Redis, and for how many seconds to run.
 */
public final class Orders {
    public static void main(String[] args) throws InterruptedException {
        String address = args.length > 0 ? args[0] : "redis://localhost:6379";
        long seconds = args.length > 1 ? Long.parseLong(args[1]) : 120;

        Config config = new Config();
        config.useSingleServer().setAddress(address);
        RedissonClient redisson = Redisson.create(config);
        try {
            work(redisson, Instant.now().plusSeconds(seconds));
        } finally {
            redisson.shutdown(); // else its threads would keep the program alive, and hide an exception
        }
    }

    private static void work(RedissonClient redisson, Instant end) throws InterruptedException {
        RRateLimiter limiter = redisson.getRateLimiter("orders");
        // 10 permits in any second, for all programs together. If the limiter has a rate, it stays.
        limiter.trySetRate(RateType.OVERALL, 10, Duration.ofSeconds(1));

        while (Instant.now().isBefore(end)) {
            limiter.acquire(1); // waits until a permit is free
            print("order shipped");
            Thread.sleep(50); // other work
            if (limiter.tryAcquire(1, Duration.ofMillis(100))) { // waits for at most 100 ms
                print("invoice mailed");
            } else {
                print("no permit in 100 ms: the invoice is mailed later");
            }
        }
    }

    private static void print(String what) {
        System.out.println(LocalTime.now().truncatedTo(ChronoUnit.MILLIS) + " Java: " + what);
    }
}
