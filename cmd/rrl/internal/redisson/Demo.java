import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.config.Config;

/**
 * The Java side of rrl demo --java: threads that acquire permits through Redisson.
 *
 * The first line of stdin has the settings (Settings in redisson.go), separated by blanks and
 * escaped as in a URL. Demo prints "ready" when Redisson is connected. The second line starts the
 * threads. The end of stdin ends the process. A thread prints a line for each result:
 * granted|denied worker|poller START END, with times in ms; or failed MESSAGE.
 */
public final class Demo {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String[] words = Arrays.stream(in.readLine().split(" ", -1))
                .map(word -> URLDecoder.decode(word, StandardCharsets.UTF_8)).toArray(String[]::new);
        Config config = new Config();
        config.useSingleServer().setAddress(words[0]).setDatabase(Integer.parseInt(words[1]))
                .setUsername(words[2].isEmpty() ? null : words[2]).setPassword(words[3].isEmpty() ? null : words[3]);
        RRateLimiter limiter = Redisson.create(config).getRateLimiter(words[4]);
        long permits = Long.parseLong(words[5]);
        System.out.println("ready");
        in.readLine();
        start(Integer.parseInt(words[6]), limiter, permits, "worker", Long.parseLong(words[7]));
        start(Integer.parseInt(words[8]), limiter, permits, "poller", Long.parseLong(words[9]));
        in.readLine();
        Runtime.getRuntime().halt(0); // at once; threads may block in acquire
    }

    private static void start(int threads, RRateLimiter limiter, long permits, String kind, long pause) {
        for (int i = 0; i < threads; i++) {
            new Thread(() -> use(limiter, permits, kind, pause), kind + " " + (i + 1)).start();
        }
    }

    /** Acquires permits until the process ends, with pauses in ns. */
    private static void use(RRateLimiter limiter, long permits, String kind, long pause) {
        try {
            while (true) {
                TimeUnit.NANOSECONDS.sleep((long) (pause * (0.5 + ThreadLocalRandom.current().nextDouble())));
                long start = System.currentTimeMillis();
                boolean granted = true;
                if (kind.equals("worker")) {
                    limiter.acquire(permits);
                } else {
                    granted = limiter.tryAcquire(permits);
                }
                String result = granted ? "granted " : "denied ";
                System.out.println(result + kind + " " + start + " " + System.currentTimeMillis());
            }
        } catch (InterruptedException | RuntimeException e) {
            System.out.println("failed " + e.toString().replaceAll("\\s+", " "));
        }
    }
}
