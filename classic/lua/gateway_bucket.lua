-- gateway_bucket.lua takes tokens from a bucket that is refilled with one token for each period
-- that has passed.
--
-- KEYS  1 hash: lastRefillTime (ms), tokensRemaining
-- ARGV  1 ms per token, 2 now (ms), 3 capacity, 4 interval (ms), 5 tokens wanted
-- reply 1 1 if granted, else 0, 2 tokens left, 3 time of the last refill (ms), 4 the stored one
--       (ms): a refusal stores none

local every, now, capacity = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local interval, wanted = tonumber(ARGV[4]), tonumber(ARGV[5])

local state = redis.call('HMGET', KEYS[1], 'lastRefillTime', 'tokensRemaining')
local last, tokens = int(state[1]), int(state[2])
local stored = last
local repaired = tokens and (not last or last > latest(now, interval))
if not tokens then
  tokens, last = capacity, now
elseif repaired then
  last = now
elseif now - last > interval then
  tokens, last = capacity, now
elseif now > last then
  local refill = math.floor((now - last) / every)
  tokens, last = tokens + refill, last + refill * every
end
tokens = math.max(0, math.min(capacity, tokens))

local granted = tokens >= wanted
if granted then
  tokens = tokens - wanted
end
if granted or repaired then
  redis.call('HSET', KEYS[1], 'lastRefillTime', whole(last), 'tokensRemaining', whole(tokens))
  redis.call('PEXPIRE', KEYS[1], whole(interval + 1))
  stored = last
end
return { granted and 1 or 0, tokens, last, stored }
