-- quota_reset.lua reads a count and sets it to zero. GETSET would also do that, but removes the TTL
-- of the key.
--
-- KEYS  1 count
-- ARGV  1 TTL of the count (ms)
-- reply 1 count before

local stored = redis.call('GET', KEYS[1])
if not stored then
  return { 0 }
end
redis.call('SET', KEYS[1], '0', 'PX', ARGV[1])
return { math.max(0, int(stored) or 0) }
