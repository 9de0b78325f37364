-- token_bucket.lua takes tokens from a bucket that is refilled in whole steps.
--
-- KEYS  1 tokens left, 2 time of the last refill (s)
-- ARGV  1 capacity, 2 tokens per step, 3 step (s), 4 now (s), 5 tokens wanted, 6 debt that a
--       request may leave
-- reply 1 tokens taken, 2 tokens left, 3 time of the last refill (s)

local capacity, each, step = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now, wanted, debt = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

-- filling returns the time (s) that it takes to fill a bucket that has so many tokens, at most 1e9
-- s, the longest TTL.
local function filling(tokens)
  return math.min(1e9, math.ceil((capacity - tokens) / each) * step)
end

local tokens = int(redis.call('GET', KEYS[1]))
local last = int(redis.call('GET', KEYS[2]))
local fresh, repaired = not tokens, false
if fresh then
  tokens, last = capacity, now
elseif not last or last > now + filling(0) then
  last, repaired = now, true
end
local steps = math.max(0, math.floor((now - last) / step))
if tokens < -TIMES * DEBT * (capacity + debt) then
  tokens = -debt
end
tokens = math.min(capacity, tokens + steps * each)
last = last + steps * step

local count = taken(wanted, tokens >= 1 and tokens + debt or 0, tokens + DEBT * (capacity + debt))
tokens = tokens - count
if count > 0 or repaired then
  local life = filling(math.min(0, tokens))
  redis.call('SET', KEYS[1], whole(tokens), 'EX', whole(life))
  redis.call('SET', KEYS[2], whole(last), 'EX', whole(fresh and life + 1 or life))
end
return { count, tokens, last }
