-- expire.lua sets or clears the life time of a limiter: of all its keys at once.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 PEXPIRE, PEXPIREAT or PERSIST, 2 ms from now or since the epoch (0 with PERSIST), 3 condition on the life time
--       that the configuration has: '' none, NX it has none, XX it has one, GT it ends before, LT it ends later or never
-- reply 1 if it was done, else 0
--
-- PEXPIRE knows these conditions only from Redis 7.0 on, so they are decided here.
--
-- PERSIST lets the client's own pair live for an interval and a minute from now: then it says nothing any more (renew.lua),
-- and a client that never comes back would leave it for ever.

local condition = ARGV[3]
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
  return { 0 }
end
if condition ~= '' then
  local wanted = tonumber(ARGV[2])
  if ARGV[1] == 'PEXPIREAT' then
    local time = redis.call('TIME')
    wanted = wanted - time[1] * 1000 - math.floor(time[2] / 1000)
  end
  local met = (condition == 'NX' and left == -1)
    or (condition == 'XX' and left ~= -1)
    or (condition == 'GT' and left ~= -1 and wanted > left)
    or (condition == 'LT' and (left == -1 or wanted < left))
  if not met then
    return { 0 }
  end
end
local interval = redis.call('TYPE', KEYS[1]).ok == 'hash' and redis.call('HGET', KEYS[1], 'interval')
if not interval or #interval > 15 or not string.find(interval, '^%d+$') then
  interval = 0
end
local done = 0
for i = #KEYS, 1, -1 do
  if ARGV[1] ~= 'PERSIST' then
    done = redis.call(ARGV[1], KEYS[i], ARGV[2])
  elseif i == 3 or i == 5 then
    redis.call('PEXPIRE', KEYS[i], interval + 60000)
  else
    done = redis.call('PERSIST', KEYS[i])
  end
end
return { done }
