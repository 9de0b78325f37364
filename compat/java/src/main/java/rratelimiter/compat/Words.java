package rratelimiter.compat;

import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;

/** How a word of the protocol is written: no blanks, no line ends, whatever it holds. */
final class Words {
    private Words() {
    }

    static String decode(String word) {
        return word.equals("\"\"") ? "" : URLDecoder.decode(word, StandardCharsets.UTF_8);
    }

    static String encode(String text) {
        return text.isEmpty() ? "\"\"" : URLEncoder.encode(text, StandardCharsets.UTF_8);
    }

    /** The number in a word, with an error that says which word is wrong. */
    static long number(String word) {
        try {
            return Long.parseLong(word);
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException("not a whole number: " + word);
        }
    }
}
