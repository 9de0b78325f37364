-- leaky_bucket.lua adds drops to a bucket that leaks evenly.
--
-- KEYS  1 hash: level (drops), lastLeak (ms)
-- ARGV  1 capacity, 2 drops that leak, 3 in so long (ms), 4 now (ms), 5 drops to add, 6 drops that may be there before
-- reply 1 1 if they were added, else 0, 2 room left, rounded down, 3 ms until no more than may be there are, 4 ms until all
--       that were there before have leaked, 5 ms until the bucket is empty

local capacity, leak, interval = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now, drops, before = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

-- leaking is how long it takes for so many drops to leak.
local function leaking(amount)
  return math.max(0, math.ceil(amount * interval / leak - 1e-6))
end

local state = redis.call('HMGET', KEYS[1], 'level', 'lastLeak')
local level, last = decimal(state[1]), int(state[2])
if not level or level < 0 or level > 1e15 then
  level = 0
end
if not last or last > now + leaking(math.max(level, capacity)) then
  last = now
end
if now > last then
  level = math.max(0, level - (now - last) * leak / interval)
  last = now
end
-- Rounded up to what is written, but not for what arithmetic alone has left over.
level = math.ceil(level * 1e6 - 1e-3) / 1e6
local ahead = math.max(0, last - now)

local wait, turn = leaking(level - before), leaking(level)
local added = level <= before
if added then
  level = level + drops
  redis.call('HSET', KEYS[1], 'level', string.format('%.6f', level), 'lastLeak', whole(last))
  redis.call('PEXPIRE', KEYS[1], math.max(1, leaking(level) + ahead))
end
return { added and 1 or 0, math.floor(capacity - level), ahead + wait, ahead + turn, ahead + leaking(level) }
