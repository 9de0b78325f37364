-- quota.lua takes permits from a quota, or returns some to it.
--
-- KEYS  1 count
-- ARGV  1 limit, 2 permits (negative: returned), 3 TTL of the count (ms)
-- reply 1 permits counted now (negative: given back), 2 count

local limit, permits = tonumber(ARGV[1]), tonumber(ARGV[2])
local stored = redis.call('GET', KEYS[1])
local count = int(stored)
local known = count and count >= 0
local mortal = redis.call('PTTL', KEYS[1]) ~= -1
count = known and count or 0

local change = math.max(permits, 0 - count) -- -count could be -0, which INCRBY does not accept
if permits > 0 then
  change = taken(permits, limit - count, MOST - count)
end
if not known then
  if change ~= 0 or stored then
    redis.call('SET', KEYS[1], whole(change))
    mortal = false
  end
elseif change > 0 then
  redis.call('INCRBY', KEYS[1], whole(change))
elseif change < 0 then
  redis.call('DECRBY', KEYS[1], whole(-change))
end
if not mortal then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return { change, count + change }
