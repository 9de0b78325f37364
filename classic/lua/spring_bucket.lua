-- spring_bucket.lua takes tokens from a bucket of Spring Cloud Gateway. Unlike the others it also
-- writes when it refuses, since the gateway does: the time key holds the time of the last request.
--
-- KEYS  1 tokens left, 2 time of the last request (s)
-- ARGV  1 tokens per second, 2 capacity, 3 tokens wanted, 4 now (s since 1970; '': this server's
--       clock)
-- reply 1 1 if granted, else 0, 2 tokens left, 3 µs of the current second that have passed

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

local life = whole(math.floor(2 * capacity / rate)) -- longer than the bucket takes to fill
redis.call('SET', KEYS[1], string.format('%.17g', tokens), 'EX', life)
redis.call('SET', KEYS[2], second, 'EX', life)
return { granted and 1 or 0, math.floor(tokens), tonumber(micros) }
