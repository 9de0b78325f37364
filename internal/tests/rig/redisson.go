package rig

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/limiter"
)

// AskRedisson behaves like Redisson's tryAcquire: it returns 0 if it grants, else the ms until the
// oldest record expires, plus three. KEYS: value, permits; ARGV: now, interval (ms), permits,
// record.
var AskRedisson = redis.NewScript(`
local now, interval, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - interval)) do
  redis.call('INCRBY', KEYS[1], string.byte(member, -4) + 256 * string.byte(member, -3))
  redis.call('ZREM', KEYS[2], member)
end
if tonumber(redis.call('GET', KEYS[1])) >= wanted then
  redis.call('ZADD', KEYS[2], now, ARGV[4])
  redis.call('DECRBY', KEYS[1], wanted)
  return 0
end
return tonumber(redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]) + interval - now + 3`)

// TakeForRedissons makes the library take a script for Redisson's, until the test ends: a server
// that has it counts as one that Redisson uses.
func TakeForRedissons(t *testing.T, sha string) {
	t.Helper()
	old := limiter.RedissonScripts
	limiter.RedissonScripts = []any{sha}
	t.Cleanup(func() { limiter.RedissonScripts = old })
}
