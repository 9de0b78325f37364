-- trysetrate.lua sets the rate of a limiter that has none, as Redisson's trySetRate does: field by field, so that what
-- is there stays.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits (named alone: a cluster refuses them in two slots)
-- ARGV  1 rate, 2 interval (ms), 3 type, 4 keep-alive (ms; 0: none)
-- reply 1 if the limiter had no type, and so no rate, before; else 0

redis.call('HSETNX', KEYS[1], 'rate', ARGV[1])
redis.call('HSETNX', KEYS[1], 'interval', ARGV[2])
local set = redis.call('HSETNX', KEYS[1], 'type', ARGV[3])
if set == 1 and ARGV[4] ~= '0' and redis.call('HSETNX', KEYS[1], 'keepAliveTime', ARGV[4]) == 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return { set }
