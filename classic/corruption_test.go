package classic_test

import (
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// Whatever text stands where a number should be, no script fails, and none grants for ever or refuses for ever.
func TestNoNumberIsTrusted(t *testing.T) {
	bad := []string{"", "nan", "-nan", "inf", "-inf", "1e999", "-1e999", "0x10", "soon", "1.5.5", " 5", "99999999999999999999", "-5", "9\x00"}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, subject := range subjects() {
			if subject.name == "list window" { // has no number
				continue
			}
			t.Run(subject.name, func(t *testing.T) {
				for _, text := range bad {
					b := newBench(t, s)
					b.do("flushdb")
					l := subject.make(b.rdb, "key", b.clock())
					b.granted(l, 1)
					for _, key := range b.rdb.Keys(t.Context(), "*").Val() {
						switch b.do("type", key) {
						case "string":
							b.do("set", key, text)
						case "hash":
							for field := range b.rdb.HGetAll(t.Context(), key).Val() {
								b.do("hset", key, field, text)
							}
						}
					}
					if granted := b.takes(l, 40); granted > 25 {
						t.Errorf("%q: granted %d at once", text, granted)
					}
					b.pass(25 * 3600 * 1000 * ms)
					b.granted(l, 1)
					for _, key := range b.rdb.Keys(t.Context(), "*").Val() {
						if left := b.do("pttl", key).(int64); left == -1 && !strings.Contains(key, "2036-01-01") {
							t.Errorf("%q: %s lives for ever", text, key)
						}
					}
				}
			})
		}
	})
}
