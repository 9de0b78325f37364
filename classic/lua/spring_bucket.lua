-- spring_bucket.lua takes tokens from a bucket of Spring Cloud Gateway. Unlike the others it also
-- writes when it refuses, since the gateway does: the time key holds the time of the last request.
-- With a rate that is no whole number, a bucket holds parts of tokens.
--
-- KEYS  1 tokens left, 2 time of the last request (s)
-- ARGV  1 tokens per second, 2 capacity, 3 tokens wanted, 4 now (s since 1970; '': this server's
--       clock)
-- reply 1 1 if granted, else 0, 2 tokens left, rounded down, 3 µs of the current second that have
--       passed; s from its beginning until the bucket holds 4 the wanted tokens, 5 the next whole
--       token, 6 all tokens, each at most LONGEST

local LONGEST = 9e9 -- s: neither a Duration of Go nor a TTL of the embedded server can be much longer

local rate, capacity, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local second, micros = string.match(ARGV[4], '^(%d+)%.(%d+)$')
if not second then
  local time = redis.call('TIME')
  second, micros = time[1], time[2]
end

local tokens = math.max(0, math.min(capacity, float(redis.call('GET', KEYS[1])) or capacity))
local idle = math.max(0, tonumber(second) - (float(redis.call('GET', KEYS[2])) or 0))
tokens = math.min(capacity, tokens + idle * rate)
local granted = tokens >= wanted
if granted then
  tokens = tokens - wanted
end

local life = whole(math.min(LONGEST, math.floor(2 * capacity / rate))) -- longer than the bucket takes to fill
redis.call('SET', KEYS[1], string.format('%.17g', tokens), 'EX', life)
redis.call('SET', KEYS[2], second, 'EX', life)

-- filled returns the seconds after which the next request finds that many tokens: the quotient can
-- be one off, since it is rounded.
local function filled(count)
  local seconds = math.min(LONGEST, math.max(0, math.ceil((count - tokens) / rate) - 1))
  while seconds < LONGEST and tokens + seconds * rate < count do
    seconds = seconds + 1
  end
  return seconds
end
local left = math.floor(tokens)
return { granted and 1 or 0, left, tonumber(micros), filled(wanted), filled(left + 1), filled(capacity) }
