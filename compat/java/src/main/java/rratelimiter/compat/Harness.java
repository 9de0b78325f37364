package rratelimiter.compat;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The main class of the harness. It implements the protocol; Commands has the rate limiter's calls.
 *
 * <pre>
 * java -jar harness.jar OPTIONS COMMAND ARGS...   runs one command, prints its reply; exits with 1
 *                                                 on an error
 * java -jar harness.jar OPTIONS                   reads commands from stdin until it ends
 * </pre>
 *
 * In the second form the first line out is {@code ready VERSION CLIENTID}. A request is one line,
 * {@code [@TAG] COMMAND ARGS...}, words separated by single blanks, each escaped like a value in a
 * URL query ({@code ""} stands for the empty word). A request ends with one line
 * {@code ok WORDS...} or {@code error CLASS MESSAGE}; {@code run} writes lines of its own before
 * that. With a tag, every line of the answer begins with it and the command runs beside others;
 * without one, commands run one after the other. {@code cancel @TAG} interrupts a tagged command.
 */
public final class Harness {
    private static final Map<String, Thread> RUNNING = new ConcurrentHashMap<>();

    private Harness() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        // Must be set before the first logger exists: only warnings and errors, on stderr.
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "warn");
        Options options;
        Commands commands;
        try {
            options = Options.parse(args);
            commands = new Commands(options.connect());
        } catch (Exception | LinkageError e) {
            out.println(failure(e));
            out.flush();
            System.exit(1);
            return;
        }
        boolean fine = true;
        if (options.command().isEmpty()) {
            serve(commands, out);
        } else {
            Reply reply = new Reply(out, "");
            fine = answer(commands, options.command(), reply);
        }
        out.flush();
        // exit, because threads that still block in acquire must not keep the JVM alive.
        System.exit(fine ? 0 : 1);
    }

    private static void serve(Commands commands, PrintStream out) throws Exception {
        new Reply(out, "").line("ready " + Commands.version() + " " + commands.id());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (line.isBlank()) {
                continue;
            }
            List<String> words = Arrays.asList(line.strip().split(" "));
            String tag = words.get(0).startsWith("@") ? words.get(0) : "";
            List<String> command = words.subList(tag.isEmpty() ? 0 : 1, words.size());
            if (!command.isEmpty() && command.get(0).equals("cancel")) {
                Thread thread = command.size() == 2 ? RUNNING.get(command.get(1)) : null;
                if (thread != null) {
                    thread.interrupt();
                }
                new Reply(out, tag).line("ok " + (thread != null));
            } else if (tag.isEmpty()) {
                answer(commands, command, new Reply(out, ""));
            } else {
                Thread thread = new Thread(() -> {
                    try {
                        answer(commands, command, new Reply(out, tag));
                    } finally {
                        RUNNING.remove(tag);
                    }
                }, "command " + tag);
                thread.setDaemon(true);
                RUNNING.put(tag, thread);
                thread.start();
            }
        }
    }

    private static boolean answer(Commands commands, List<String> words, Reply reply) {
        String last;
        boolean fine = true;
        try {
            String result = commands.execute(words.stream().map(Words::decode).toList(), reply);
            last = result.isEmpty() ? "ok" : "ok " + result;
        } catch (Exception | LinkageError e) {
            last = failure(e);
            fine = false;
        }
        reply.line(last);
        return fine;
    }

    /** Formats a failure as one line, with its causes: Redisson often wraps the one that says why. */
    static String failure(Throwable failure) {
        String name = failure instanceof Unsupported ? "unsupported" : failure.getClass().getName();
        StringBuilder text = new StringBuilder(String.valueOf(failure.getMessage()));
        for (Throwable cause = failure.getCause(); cause != null; cause = cause.getCause()) {
            String more = String.valueOf(cause.getMessage());
            if (text.indexOf(more) < 0) {
                text.append(": ").append(cause.getClass().getName()).append(": ").append(more);
            }
        }
        return "error " + name + " " + text.toString().replaceAll("\\s+", " ").strip();
    }

    /** Writes the lines of one answer, each whole and with the tag of its request. */
    record Reply(PrintStream out, String tag) {
        void line(String text) {
            String whole = tag.isEmpty() ? text : tag + " " + text;
            synchronized (out) {
                out.print(whole + "\n");
                out.flush();
            }
        }
    }

    /** Thrown for a call that this version of Redisson does not have. */
    static final class Unsupported extends RuntimeException {
        private static final long serialVersionUID = 1;

        Unsupported(String what) {
            super("Redisson " + Commands.version() + " has no " + what);
        }
    }
}
