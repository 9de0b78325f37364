-- window_keys.lua counts permits in a window that has a key of its own.
--
-- KEYS  1 count
-- ARGV  1 limit, 2 TTL of the key (s), 3 permits
-- reply 1 count, or -1 if over the limit, 2 count

local limit, life, permits = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local count = int(redis.call('GET', KEYS[1]))
if not count or count < 0 then
  redis.call('SET', KEYS[1], ARGV[3], 'EX', life)
  return { permits, permits }
end

local mortal = redis.call('PTTL', KEYS[1]) ~= -1
local over = count + permits > limit
if not over then
  count = redis.call('INCRBY', KEYS[1], ARGV[3])
end
if not mortal then
  redis.call('EXPIRE', KEYS[1], life)
end
return { over and -1 or count, count }
