package rratelimiter.compat;

import org.redisson.api.RRateLimiter;
import org.redisson.api.RateIntervalUnit;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;

/**
 * The Java code of the documentation, line by line: the tests of examples/guide compare the pages
 * with this file.
 */
final class Pages {
    private Pages() {
    }

    /** Runs the code of a page and returns its result. */
    static String run(RedissonClient redisson, String page) {
        return switch (page) {
            case "guide" -> {
                guide(redisson);
                yield "";
            }
            case "readme" -> "" + readme(redisson);
            default -> throw new IllegalArgumentException("no page " + page);
        };
    }

    private static void guide(RedissonClient redisson) {
        RRateLimiter orders = redisson.getRateLimiter("orders");
        orders.trySetRate(RateType.OVERALL, 100, 1, RateIntervalUnit.SECONDS);
        orders.acquire(1);
    }

    private static boolean readme(RedissonClient redisson) {
        RRateLimiter limiter = redisson.getRateLimiter("orders");
        limiter.trySetRate(RateType.OVERALL, 100, 1, RateIntervalUnit.SECONDS); // since 3.37: 100, Duration.ofSeconds(1)
        limiter.acquire(1);
        boolean allowed = limiter.tryAcquire(1);
        return allowed;
    }
}
