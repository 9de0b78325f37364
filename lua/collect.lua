-- collect.lua removes a client's own pair of keys where nothing is lost by that: it says that all is free.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 now (ms; '': this server's clock), 2 how long (ms) no record may have counted, 3 flags: d change nothing
-- reply 0 there are records that count, or counted so short a while ago; 1 removed; 2 it leaves by itself; 3 there is none

local call = redis.call
local asked = ARGV[1]
--@include clock
local value, records = KEYS[3], KEYS[5]
local interval = call('HGET', KEYS[1], 'interval')
if not interval or #interval > 15 or not string.find(interval, '^%d+$') then
  interval = 0
end
local newest = call('ZRANGE', records, '-1', '-1', 'WITHSCORES')[2]
if newest and tonumber(newest) > now - interval - ARGV[2] then
  return { 0 }
end
local lives = { call('PTTL', value), call('PTTL', records) }
if lives[1] == -2 and lives[2] == -2 then
  return { 3 }
elseif lives[1] ~= -1 and lives[2] ~= -1 then
  return { 2 }
end
if not string.find(ARGV[3], 'd', 1, true) then
  call('DEL', value, records)
end
return { 1 }
