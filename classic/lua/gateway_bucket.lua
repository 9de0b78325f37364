-- gateway_bucket.lua takes tokens from a bucket that is refilled with one token for each period
-- that has passed. A debt is a time of the last refill that is ahead: the usual scripts accept no
-- negative number of tokens, and refill nothing until then.
--
-- KEYS  1 hash: lastRefillTime (ms), tokensRemaining
-- ARGV  1 ms per token, 2 now (ms), 3 capacity, 4 interval (ms), 5 tokens wanted
-- reply 1 tokens taken, 2 tokens left, 3 time of the last refill (ms), 4 the stored one
--       (ms): a refusal stores none

local every, now, capacity = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local interval, wanted = tonumber(ARGV[4]), tonumber(ARGV[5])

local state = redis.call('HMGET', KEYS[1], 'lastRefillTime', 'tokensRemaining')
local last, tokens = int(state[1]), int(state[2])
local stored = last or now
local owed = math.min(MOST / 4, DEBT * capacity * every) -- the longest debt (ms), so that its end is exact
local repaired = tokens and (not last or last > latest(now, math.max(interval, TIMES * owed)))
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

local count = taken(wanted, tokens, tokens + (owed - math.max(0, last - now)) / every)
tokens = tokens - count
if tokens < 0 then
  last = last - tokens * every -- a statement of its own: see two_counters.lua
  tokens = 0
end
if count > 0 or repaired then
  redis.call('HSET', KEYS[1], 'lastRefillTime', whole(last), 'tokensRemaining', whole(tokens))
  local debt = math.min(1e12 - interval, math.max(0, last - now)) -- 1e12 ms is the longest TTL of a debt
  redis.call('PEXPIRE', KEYS[1], whole(math.max(debt, 0) + interval + 1))
  stored = last
end
return { count, tokens, last, stored }
