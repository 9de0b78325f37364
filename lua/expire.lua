-- expire.lua sets or clears the TTL of a limiter: of all its keys, but not of a key that another
-- program uses.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 command    PEXPIRE, PEXPIREAT or PERSIST
--       2 time       ms from now or since the epoch (0 with PERSIST)
--       3 condition  on the TTL of the configuration: '' none, NX it has none, XX it has one, GT it
--                    ends before, LT it ends later or never
-- reply 1 done       1, else 0
--
-- PEXPIRE has these conditions from Redis 7.0 on, so they are checked here.
--
-- After PERSIST the client's own pair expires in an interval and a minute: then nothing in it
-- counts (keep_alive.lua), and a client that never comes back would leave it for ever.

--@include base
--@include config
local command, time, condition = ARGV[1], ARGV[2], ARGV[3]
local ttl = call('PTTL', KEYS[1])
if ttl == -2 or is_foreign(1) then
  return { 0 }
end
if condition ~= '' then
  local wanted = tonumber(time)
  if command == 'PEXPIREAT' then
    wanted = wanted - math.floor(read_clock(''))
  end
  local met = (condition == 'NX' and ttl == -1)
    or (condition == 'XX' and ttl ~= -1)
    or (condition == 'GT' and ttl ~= -1 and wanted > ttl)
    or (condition == 'LT' and (ttl == -1 or wanted < ttl))
  if not met then
    return { 0 }
  end
end
local interval = parse_number(call('HGET', KEYS[1], 'interval')) or 0
local done = 0
for i = #KEYS, 1, -1 do
  if not is_foreign(i) then
    if command ~= 'PERSIST' then
      done = call(command, KEYS[i], time)
    elseif i == 3 or i == 5 then
      call('PEXPIRE', KEYS[i], string.format('%.0f', interval + 60000))
    else
      done = call('PERSIST', KEYS[i])
    end
  end
end
return { done }
