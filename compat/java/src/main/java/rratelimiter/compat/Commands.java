package rratelimiter.compat;

import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.Date;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RRateLimiterAsync;
import org.redisson.api.RRateLimiterReactive;
import org.redisson.api.RRateLimiterRx;
import org.redisson.api.RateIntervalUnit;
import org.redisson.api.RateLimiterConfig;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;

/**
 * The commands of the harness, each one call of Redisson. Methods that every version has are called
 * directly; the others are looked up by name, and a missing one is reported as "unsupported".
 *
 * <pre>
 * version | id
 * methods                                                         RRateLimiter's, as Java has them
 * page guide|readme                                               the result of its Java code
 * trysetrate NAME TYPE RATE INTERVALMS [KEEPALIVEMS]              true or false
 * setrate    NAME TYPE RATE INTERVALMS [KEEPALIVEMS] [keepstate]
 * updaterate NAME TYPE RATE INTERVALMS [KEEPALIVEMS] [keepstate]  true or false
 * tryacquire NAME N [TIMEOUTMS]                                   true or false
 * acquire    NAME N
 * release    NAME N
 * available  NAME                                                 permits
 * config     NAME                                                 TYPE RATE INTERVALMS
 * expire     NAME MS [set|notset|greater|less]                    true or false
 * expireat   NAME EPOCHMS                                         true or false
 * clearexpire | exists | delete | unlink | touch NAME             true or false
 * ttl | expiretime NAME                                           ms, epoch ms; -1 none, -2 missing
 * rename     NAME NEWNAME
 * renamenx   NAME NEWNAME                                         true or false
 * run        NAME ...                                             see Run
 * bench      NAME ...                                             see Bench
 * </pre>
 */
final class Commands {
    private static final String VERSION = readVersion();

    private final RedissonClient client;

    Commands(RedissonClient client) {
        this.client = client;
    }

    /** The actual version of the Redisson on the class path. */
    static String version() {
        return VERSION;
    }

    private static String readVersion() {
        Properties properties = new Properties();
        try (InputStream in = Redisson.class.getResourceAsStream("/META-INF/maven/org.redisson/redisson/pom.properties")) {
            properties.load(in);
        } catch (IOException e) {
            throw new IllegalStateException("which Redisson is this?", e);
        }
        return properties.getProperty("version");
    }

    String id() {
        return client.getId();
    }

    /**
     * The methods of RRateLimiter and the interfaces that it extends, each as NAME(TYPE,TYPE). The
     * methods of the asynchronous, reactive and Rx interfaces have the same parameters and are
     * listed as NAME alone.
     */
    private static String methods() {
        Stream<String> usual = Stream.of(RRateLimiter.class.getMethods())
                .filter(method -> !method.getDeclaringClass().getSimpleName().endsWith("Async"))
                .map(method -> method.getName() + Stream.of(method.getParameterTypes()).map(Class::getSimpleName)
                        .collect(Collectors.joining(",", "(", ")")));
        Stream<String> others = Stream.of(RRateLimiterAsync.class, RRateLimiterReactive.class, RRateLimiterRx.class)
                .flatMap(style -> Stream.of(style.getMethods()))
                .map(Method::getName);
        return Stream.concat(usual, others).distinct().sorted().collect(Collectors.joining(" "));
    }

    /** Runs one command and returns the words after "ok". */
    String execute(List<String> words, Harness.Reply reply) throws InterruptedException {
        Args args = new Args(words);
        String command = args.text("a command");
        switch (command) {
            case "version":
                return VERSION;
            case "id":
                return id();
            case "methods":
                return methods();
            case "page":
                return Pages.run(client, args.text("a page"));
            default:
                break;
        }
        String name = args.text("a name");
        RRateLimiter limiter = client.getRateLimiter(name);
        String result = switch (command) {
            case "trysetrate" -> "" + Boolean.TRUE.equals(setRate(limiter, "trySetRate", args));
            case "setrate" -> {
                setRate(limiter, "setRate", args);
                yield "";
            }
            case "updaterate" -> "" + setRate(limiter, "updateRate", args);
            case "tryacquire" -> {
                long permits = args.number("a number of permits");
                yield "" + (args.end() ? limiter.tryAcquire(permits)
                        : limiter.tryAcquire(permits, args.number("ms"), TimeUnit.MILLISECONDS));
            }
            case "acquire" -> {
                limiter.acquire(args.number("a number of permits"));
                yield "";
            }
            case "available" -> "" + limiter.availablePermits();
            case "config" -> {
                RateLimiterConfig config = limiter.getConfig();
                yield config.getRateType() + " " + config.getRate() + " " + config.getRateInterval();
            }
            case "release" -> {
                call(limiter, "release", long.class, args.number("a number of permits"));
                yield "";
            }
            case "expire" -> expire(limiter, args);
            case "expireat" -> "" + limiter.expireAt(new Date(args.number("epoch ms")));
            case "clearexpire" -> "" + limiter.clearExpire();
            case "ttl" -> "" + limiter.remainTimeToLive();
            case "expiretime" -> "" + call(limiter, "getExpireTime");
            case "exists" -> "" + limiter.isExists();
            case "delete" -> "" + limiter.delete();
            case "unlink" -> "" + limiter.unlink();
            case "touch" -> "" + limiter.touch();
            case "rename" -> {
                limiter.rename(args.text("a new name"));
                yield "";
            }
            case "renamenx" -> "" + limiter.renamenx(args.text("a new name"));
            case "run" -> Run.parse(args).go(limiter, reply);
            case "bench" -> Bench.parse(args).go(limiter);
            default -> throw new IllegalArgumentException("unknown command " + command);
        };
        if (!args.end()) {
            throw new IllegalArgumentException("too many words for " + command);
        }
        return result;
    }

    /**
     * Parses TYPE RATE INTERVALMS [KEEPALIVEMS] [keepstate] and sets the rate in one of the three
     * ways.
     */
    private static Object setRate(RRateLimiter limiter, String method, Args args) {
        RateType type = RateType.valueOf(args.text("OVERALL or PER_CLIENT"));
        long rate = args.number("a rate");
        long interval = args.number("an interval in ms");
        boolean keepState = false;
        long keepAlive = 0;
        while (!args.end()) {
            String word = args.text("a keep-alive time");
            if (word.equals("keepstate")) {
                keepState = true;
            } else {
                keepAlive = Words.number(word);
            }
        }
        if (keepState || method.equals("updateRate")) {
            if (method.equals("trySetRate")) {
                throw new Harness.Unsupported("trySetRate that keeps state");
            }
            Class<?> argsType = argsType();
            Object rateArgs = call(null, argsType, "of", new Class<?>[] {RateType.class, long.class, Duration.class},
                    type, rate, Duration.ofMillis(interval));
            if (keepAlive != 0) {
                rateArgs = call(rateArgs, argsType, "keepAliveTime", new Class<?>[] {Duration.class}, Duration.ofMillis(keepAlive));
            }
            if (keepState) {
                rateArgs = call(rateArgs, argsType, "keepState", new Class<?>[] {boolean.class}, true);
            }
            return call(limiter, RRateLimiter.class, method, new Class<?>[] {argsType}, rateArgs);
        }
        if (keepAlive != 0) {
            return call(limiter, RRateLimiter.class, method,
                    new Class<?>[] {RateType.class, long.class, Duration.class, Duration.class},
                    type, rate, Duration.ofMillis(interval), Duration.ofMillis(keepAlive));
        }
        if (method.equals("trySetRate")) {
            return limiter.trySetRate(type, rate, interval, RateIntervalUnit.MILLISECONDS);
        }
        return call(limiter, RRateLimiter.class, method,
                new Class<?>[] {RateType.class, long.class, long.class, RateIntervalUnit.class},
                type, rate, interval, RateIntervalUnit.MILLISECONDS);
    }

    private static Class<?> argsType() {
        try {
            return Class.forName("org.redisson.api.ratelimiter.RateLimiterArgs");
        } catch (ClassNotFoundException e) {
            throw new Harness.Unsupported("RateLimiterArgs");
        }
    }

    /** Parses MS [set|notset|greater|less] and sets the TTL. */
    private static String expire(RRateLimiter limiter, Args args) {
        long ms = args.number("ms");
        if (args.end()) {
            return "" + limiter.expire(ms, TimeUnit.MILLISECONDS);
        }
        String condition = args.text("a condition");
        String method = switch (condition) {
            case "set" -> "expireIfSet";
            case "notset" -> "expireIfNotSet";
            case "greater" -> "expireIfGreater";
            case "less" -> "expireIfLess";
            default -> throw new IllegalArgumentException("unknown condition " + condition);
        };
        return "" + call(limiter, method, Duration.class, Duration.ofMillis(ms));
    }

    private static Object call(RRateLimiter limiter, String method) {
        return call(limiter, RRateLimiter.class, method, new Class<?>[0]);
    }

    private static Object call(RRateLimiter limiter, String method, Class<?> type, Object arg) {
        return call(limiter, RRateLimiter.class, method, new Class<?>[] {type}, arg);
    }

    private static Object call(Object target, Class<?> owner, String name, Class<?>[] types, Object... args) {
        try {
            Method method = owner.getMethod(name, types);
            return method.invoke(target, args);
        } catch (NoSuchMethodException e) {
            throw new Harness.Unsupported(owner.getSimpleName() + "." + name
                    + Stream.of(types).map(Class::getSimpleName).toList());
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof RuntimeException failure) {
                throw failure;
            }
            throw new IllegalStateException(name, e.getCause());
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(name, e);
        }
    }

    /** The words of a command, consumed one by one. */
    static final class Args {
        private final List<String> words;
        private int next;

        Args(List<String> words) {
            this.words = words;
        }

        boolean end() {
            return next >= words.size();
        }

        String text(String what) {
            if (end()) {
                throw new IllegalArgumentException("missing: " + what);
            }
            return words.get(next++);
        }

        long number(String what) {
            return Words.number(text(what));
        }
    }
}
