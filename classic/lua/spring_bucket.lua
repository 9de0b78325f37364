-- spring_bucket.lua takes tokens from a bucket of Spring Cloud Gateway. Unlike the others it also
-- writes when it refuses, since the gateway does: the time key holds the time of the last request.
-- With a rate that is no whole number, a bucket holds parts of tokens.
--
-- KEYS  1 tokens left, 2 time of the last request (s)
-- ARGV  1 tokens per second, 2 capacity, 3 tokens wanted, 4 now (s since 1970; '': this server's
--       clock)
-- reply 1 tokens taken, 2 tokens left, rounded down, 3 µs of the current second that have
--       passed; s from its beginning until the bucket holds 4 the wanted tokens, 5 the next whole
--       token, 6 all tokens, each at most LONGEST

local LONGEST = 9e9 -- s: neither a Duration of Go nor a TTL of the embedded server can be much longer

local rate, capacity, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local second, micros = string.match(ARGV[4], '^(%d+)%.(%d+)$')
if not second then
  local time = redis.call('TIME')
  second, micros = time[1], time[2]
end

local tokens = math.min(capacity, float(redis.call('GET', KEYS[1])) or capacity)
if tokens < -TIMES * DEBT * capacity then
  tokens = 0
end
local idle = math.max(0, tonumber(second) - (float(redis.call('GET', KEYS[2])) or 0))
tokens = math.min(capacity, tokens + idle * rate)
local count = taken(wanted, tokens, tokens + DEBT * capacity)
tokens = tokens - count

-- The gateway's TTL is longer than a bucket without a debt takes to fill.
local life = math.max(math.floor(2 * capacity / rate), math.ceil((capacity - tokens) / rate))
life = whole(math.min(LONGEST, life))
redis.call('SET', KEYS[1], string.format('%.17g', tokens), 'EX', life)
redis.call('SET', KEYS[2], second, 'EX', life)

-- filled returns the seconds after which the next request finds that many tokens: the quotient can
-- be one off, since it is rounded.
local function filled(target)
  local seconds = math.min(LONGEST, math.max(0, math.ceil((target - tokens) / rate) - 1))
  while seconds < LONGEST and tokens + seconds * rate < target do
    seconds = seconds + 1
  end
  return seconds
end
local left = math.floor(tokens)
return { count, left, tonumber(micros), filled(wanted), filled(math.max(0, left) + 1), filled(capacity) }
