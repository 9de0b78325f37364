-- collect.lua removes a client's own pair of keys if nothing is lost by that: if it says that all
-- permits are free.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 now    ms; '': this server's clock
--       2 idle   ms for which no record may have counted
--       3 flags  d change nothing
-- reply 1 result 0: records count, or counted within that time, or may count: a configuration has
--       no valid interval, or it is
--                missing and they are younger than UNKNOWN_INTERVAL and that time; or the value is
--                no number of permits: another program may have written it; 1: removed; 2: the pair
--                has a TTL; 3: there is no pair; 4: another program uses one of the two keys

--@include base
--@include config
local UNKNOWN_INTERVAL = 31 * 24 * 3600000 -- ms: a month, the longest of the usual ones
local now, idle, dry = read_clock(ARGV[1]), tonumber(ARGV[2]), find(ARGV[3], 'd', 1, true)
local value, records = KEYS[3], KEYS[5]
if is_foreign(3) or is_foreign(5) then
  return { 4 }
end
local stored = call('GET', value)
if stored and not parse_value(stored) then
  return { 0 }
end
local newest = call('ZRANGE', records, '-1', '-1', 'WITHSCORES')[2]
local interval = parse_number(call('HGET', KEYS[1], 'interval'))
local broken = not (interval and interval > 0) and call('EXISTS', KEYS[1]) == 1
if newest and (broken or tonumber(newest) > now - (interval or UNKNOWN_INTERVAL) - idle) then
  return { 0 }
end
local value_ttl, records_ttl = call('PTTL', value), call('PTTL', records)
if value_ttl == -2 and records_ttl == -2 then
  return { 3 }
elseif value_ttl ~= -1 and records_ttl ~= -1 then
  return { 2 }
end
if not dry then
  call('UNLINK', value, records)
end
return { 1 }
