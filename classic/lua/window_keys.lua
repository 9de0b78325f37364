-- window_keys.lua counts permits in a window that has a key of its own.
--
-- KEYS  1 count
-- ARGV  1 limit, 2 TTL of the key (s), 3 permits
-- reply 1 permits counted now, 2 count

local limit, life, permits = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local count = int(redis.call('GET', KEYS[1]))
if not count or count < 0 then
  permits = taken(permits, limit, MOST)
  redis.call('SET', KEYS[1], whole(permits), 'EX', life)
  return { permits, permits }
end

local mortal = redis.call('PTTL', KEYS[1]) ~= -1
permits = taken(permits, limit - count, MOST - count)
if permits > 0 then
  count = redis.call('INCRBY', KEYS[1], whole(permits))
end
if not mortal then
  redis.call('EXPIRE', KEYS[1], life)
end
return { permits, count }
