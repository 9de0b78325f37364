-- leaky_bucket.lua adds drops to a bucket that leaks evenly.
--
-- KEYS  1 hash: level (drops), lastLeak (ms)
-- ARGV  1 capacity, 2 drops that leak per interval, 3 interval (ms), 4 now (ms), 5 drops to add, 6
--       highest level before the addition
-- reply 1 drops added, 2 room left, rounded down, 3 ms until the level allows
--       the addition, 4 ms until all earlier drops have leaked, 5 ms until the bucket is empty, 6
--       ms until there is room for one drop more

local capacity, leak, interval = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now, drops, before = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

-- leaking returns the time (ms) that it takes for an amount of drops to leak, at most 1e15 ms: a
-- reply is a whole number.
local function leaking(amount)
  return math.min(1e15, math.max(0, math.ceil(amount * interval / leak - 1e-6)))
end

local state = redis.call('HMGET', KEYS[1], 'level', 'lastLeak')
local level, last = decimal(state[1]), int(state[2])
local repaired = not last or last > latest(now, leaking(capacity))
if repaired then
  last = now
end
if not level or level < 0 then
  level = 0
elseif repaired or level > TIMES * (1 + DEBT) * capacity then
  level = math.min(level, capacity)
end
if now > last then
  level = math.max(0, level - (now - last) * leak / interval)
  last = now
end
-- The level is rounded up to the six decimals that are written; 1e-9 absorbs errors of the
-- arithmetic.
level = math.ceil(level * 1e6 - 1e-3) / 1e6
local ahead = math.max(0, last - now)

local wait, turn = leaking(level - before), leaking(level)
local added = taken(drops, level <= before and drops or 0, (1 + DEBT) * capacity - level)
level = level + added
if added > 0 or repaired then -- also on a refusal: otherwise each call resets the time, and nothing leaks
  redis.call('HSET', KEYS[1], 'level', string.format('%.6f', level), 'lastLeak', whole(last))
  local life = math.min(1e12, leaking(level) + ahead) -- 1e12 ms is the longest TTL
  redis.call('PEXPIRE', KEYS[1], whole(math.max(1, life)))
end
local room = math.floor(capacity - level)
local more = ahead + leaking(level - (capacity - math.max(0, room) - 1))
return { added, room, ahead + wait, ahead + turn, ahead + leaking(level), more }
