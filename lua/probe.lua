-- probe.lua tests whether this server can serve a limiter now: it removes an empty range of its
-- records, which changes nothing. A replica refuses that, though it answers reads; a server that
-- is out of memory does not.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  none
-- reply 0

return { redis.call('ZREMRANGEBYRANK', KEYS[4], '1', '0') }
