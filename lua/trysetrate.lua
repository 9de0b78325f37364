-- trysetrate.lua sets the rate of a limiter that has none, as Redisson's trySetRate does: field by
-- field, so that fields that exist stay.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 rate
--       2 interval    ms
--       3 kind        the type
--       4 keep_alive  ms; 0: none
-- reply 1 set         1 if the limiter had no type, and so no rate, before; else 0

--@include base
--@include config
local name, rate, interval, kind, keep_alive = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
call('HSETNX', name, 'rate', rate)
call('HSETNX', name, 'interval', interval)
local set = call('HSETNX', name, 'type', kind)
if set == 1 and call('PTTL', name) == -1 and not (is_foreign(2) or is_foreign(4)) then
  forget_ended_state(KEYS[2], KEYS[4])
  -- An older state must not end before the configuration.
  call('PERSIST', KEYS[2])
  call('PERSIST', KEYS[4])
end
if set == 1 and keep_alive ~= '0' and call('HSETNX', name, 'keepAliveTime', keep_alive) == 1 then
  call('PEXPIRE', name, keep_alive)
end
return { set }
