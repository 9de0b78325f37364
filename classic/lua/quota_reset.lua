-- quota_reset.lua reads a count and sets it to zero. GETSET would do that, too, but take the key's life time.
--
-- KEYS  1 count
-- ARGV  1 when the count ends (ms since the epoch)
-- reply 1 the count as it was

local stored = redis.call('GET', KEYS[1])
if not stored then
  return { 0 }
end
redis.call('SET', KEYS[1], '0')
redis.call('PEXPIREAT', KEYS[1], ARGV[1])
return { math.max(0, int(stored) or 0) }
