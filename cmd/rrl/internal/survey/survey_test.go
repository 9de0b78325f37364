package survey

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// Every key that the library derives from a name and a client is assigned to them.
func TestOwnersOfStateKeys(t *testing.T) {
	for _, name := range []string{
		"orders", "", "{x}", "{x}y", "a{b", "a}b", "a:value", "a:permits:b", "{a}:value:b", "a b\x00\xff", "}", "}{",
	} {
		for _, client := range []string{"one", "a:b", "a:value:b", ":permits"} {
			keys := keys.Names(name, client)
			for at, want := range map[int]Owner{1: {name, ""}, 2: {name, client}, 3: {name, ""}, 4: {name, client}} {
				state, ok := parse(keys[at])
				found := false
				for _, owner := range state.Owners {
					found = found || owner == want
				}
				if !ok || !found || state.Key != keys[at] {
					t.Errorf("%q is %+v, not of %q", keys[at], state, want)
				}
			}
		}
	}
	for _, key := range []string{"orders", "orders:value", "{orders}:values", "{orders}:other", "user:permits:7", ""} {
		if state, ok := parse(key); ok {
			t.Errorf("%q is taken for %+v", key, state)
		}
	}
	if state, _ := parse("{orders}:permits"); len(state.Owners) != 2 || state.Owners[0].Name != "orders" ||
		!state.Permits {
		t.Errorf("the usual name is not the first: %+v", state)
	}
	for _, name := range []string{"price:value:eur", "price:permits:eur"} {
		for _, client := range []string{"", "one"} {
			all := keys.Names(name, client)
			value, records := all[1], all[3]
			if client != "" {
				value, records = all[2], all[4]
			}
			for _, key := range []string{value, records} {
				if state, _ := parse(key); len(state.Owners) == 0 || state.Owners[0] != (Owner{name, client}) ||
					state.Permits != (key == records) {
					t.Errorf("%q is %+v, not first of %q", key, state, name)
				}
			}
		}
	}
}

func TestWritersAndForms(t *testing.T) {
	for member, want := range map[string]string{
		"f\x1e\x87\x5c\x02\x00\x00\x00":                            "Redisson 3.13.3 to 3.16.3 Java or unknown 2",
		"Gx\x01\x02\x02\x00\x00\x00":                               "Redisson 3.13.3 to 3.16.3 Go 78, or Java 2",
		"\x08\x00\x00\x00\x00\x00\x00\x0012345678\x00\x01\x00\x00": "Redisson 3.16.4 to 3.16.8 Java or unknown 256",
		"\x08Goabcdef\x01\x00\x00\x00":                             "Redisson 3.17.0 to 3.20.1 Go client 616263 1",

		"\x10Goabcdef12345678\xff\xff\xff\xff": "Redisson 3.21.0 and later Go client 616263 4294967295",
		// eight bytes: the client is ambiguous
		"\x03abc\x01\x00\x00\x00": "Redisson 3.13.3 to 3.16.3 Java or unknown 1",
		// with a share
		"\x0cGoabcshar123\x01\x00\x00\x00":                             "Redisson 3.17.0 to 3.20.1 Go client 616263 1",
		"\x14Goabcdefshar12345678\x01\x00\x00\x00":                     "Redisson 3.21.0 and later Go client 616263 1",
		"\x0c\x00\x00\x00\x00\x00\x00\x00Goabcshar123\x01\x00\x00\x00": "Redisson 3.16.4 to 3.16.8 Go client 616263 1",
		"\x0cabcdefghijkl\x01\x00\x00\x00":                             "an id of 12 bytes Java or unknown 1",
		"\x04abcd\x01\x00\x00\x00":                                     "an id of 4 bytes Java or unknown 1",
		"abcdefghij\x01\x00\x00\x00":                                   "14 bytes, of no known form Java or unknown 1",
		"abc":                                                          "3 bytes, no record Java or unknown 0",
	} {
		form, tag, permits := read(member)
		text := form.Odd
		if text == "" {
			text = form.Format.String()
		}
		if got := fmt.Sprintf("%s %s %d", text, Writer{Tag: tag}.Text(), permits); got != want {
			t.Errorf("%q is %s, want %s", member, got, want)
		}
	}
}

// Other clients write records between two pages: a record that moves to the next page is not
// counted twice.
func TestRecordsAreCountedOnce(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	s := &Survey{At: now, Rate: rratelimiter.PerMinute(10), Bins: make([]int64, 6), Free: 4, Readable: true}
	tally := newTally(s)
	record := func(id byte, score float64) protocol.StoredRecord {
		return protocol.StoredRecord{Member: "\x08" + string(id) + "2345678\x01\x00\x00\x00", Score: score}
	}
	for _, r := range []protocol.StoredRecord{
		record('d', 999_000), record('c', 999_000), record('b', 990_000),
		record('c', 999_000), record('b', 990_000), // the next page, moved by one or two
		record('a', 990_000), record('e', 950_001), record('f', 930_000),
	} {
		tally.add(r)
	}
	tally.finish()
	if s.Live != (Sum{5, 5}) || s.Expired != (Sum{1, 1}) || s.Drift != 0 || s.Available != 5 || tally.seen != 8 ||
		s.Oldest.UnixMilli() != 950_001 || s.Newest.UnixMilli() != 999_000 || fmt.Sprint(s.Bins) != "[0 1 0 0 0 4]" {
		t.Errorf("it counts %+v", s)
	}
}

// A signal ends the context of a command with a cause; what the command returns must say that it
// ended by its context.
func TestEachEndsWithItsContext(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	_, err := Each(ctx, []string{"a", "b"}, func(ctx context.Context, _ string) (int, error) {
		end(errors.New("a signal"))
		<-ctx.Done()
		return 0, ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	mine := errors.New("mine")
	if _, err := Each(t.Context(), []string{"a", "b"}, func(context.Context, string) (int, error) {
		return 0, mine
	}); err != mine {
		t.Error(err)
	}
}
