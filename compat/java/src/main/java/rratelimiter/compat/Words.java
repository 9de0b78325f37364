package rratelimiter.compat;

import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;

/** Escapes the words of the protocol, so that they contain no blanks and no line ends. */
final class Words {
    private Words() {
    }

    static String decode(String word) {
        return word.equals("\"\"") ? "" : URLDecoder.decode(word, StandardCharsets.UTF_8);
    }

    static String encode(String text) {
        return text.isEmpty() ? "\"\"" : URLEncoder.encode(text, StandardCharsets.UTF_8);
    }

    /** Parses a number; the exception names the wrong word. */
    static long number(String word) {
        try {
            return Long.parseLong(word);
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException("not a whole number: " + word);
        }
    }
}
