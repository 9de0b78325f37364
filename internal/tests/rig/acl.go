package rig

import (
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// ACLRule returns the ACL rule in docs/security.md as the words of a command, with the additions
// for the given uses. A use is the first words of its line on that page.
func ACLRule(t *testing.T, uses ...string) []any {
	t.Helper()
	page, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rule, found := strings.Cut(string(page), "redis-cli ACL SETUSER")
	rule, _, closed := strings.Cut(rule, "```")
	if !found || !closed {
		t.Fatal("docs/security.md has no rule")
	}
	for _, use := range uses {
		_, rest, found := strings.Cut(string(page), "\n| "+use)
		_, rest, _ = strings.Cut(rest, "| `")
		more, _, _ := strings.Cut(rest, "` |")
		if !found || !strings.HasPrefix(more, "+") {
			t.Fatalf("docs/security.md does not say what %q needs", use)
		}
		rule += " " + strings.ReplaceAll(more, `\|`, "|")
	}
	words := []any{"ACL", "SETUSER"}
	for _, word := range strings.Fields(strings.NewReplacer("'", "", "\\\n", " ").Replace(rule)) {
		words = append(words, word)
	}
	return words
}

// As creates a user with the given rule, and returns a client of that user.
func As(t *testing.T, s *redistest.Server, rule []any, opts ...func(*redis.Options)) *redis.Client {
	t.Helper()
	admin := s.Client()
	for _, words := range [][]any{{"ACL", "DELUSER", rule[2]}, rule, {"ACL", "LOG", "RESET"}} {
		if err := admin.Do(t.Context(), words...).Err(); err != nil {
			t.Fatalf("%v: %v", words, err)
		}
	}
	return s.Client(append([]func(*redis.Options){func(o *redis.Options) {
		o.Username, o.Password, o.PoolSize, o.MaxRetries = rule[2].(string), "secret", 1, -1
	}}, opts...)...)
}
