-- setrate.lua sets the rate of a limiter whatever it was, as Redisson's setRate and updateRate do. Its grants are
-- forgotten, or kept and counted against the new rate.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 now (ms; '': this server's clock), 2 rate, 3 interval (ms), 4 type, 5 keep-alive (ms; 0: none),
--       6 flags: k keep the grants (those of the same type), u only where a rate is set
-- reply 1 if it was set, else 0; 2 notes (open.lua)

--@include numbers
--@include permits
--@include clock
--@include config
--@include open
--@include close

local config = redis.call('HMGET', KEYS[1], 'rate', 'type', 'keepAliveTime')
if not config[1] and string.find(ARGV[6], 'u', 1, true) then
  return { 0, 0 }
end
local limiter = choose(0, ARGV[4], int(ARGV[2]), int(ARGV[3]), int(ARGV[5]))
local kept = string.find(ARGV[6], 'k', 1, true) and (not config[2] or config[2] == ARGV[4])
if kept then
  settle(limiter, clock(ARGV[1]), true)
  limiter.notes = limiter.more and 512 or 0 -- the rate is new, so nothing was wrong
elseif limiter.keep == 0 then
  limiter.life = redis.call('PTTL', limiter.name)
end

redis.call('HSET', KEYS[1], 'rate', ARGV[2], 'interval', ARGV[3], 'type', ARGV[4])
if limiter.keep > 0 or config[3] then
  redis.call('HSET', KEYS[1], 'keepAliveTime', ARGV[5])
end
if kept then
  save(limiter)
elseif config[2] == ARGV[4] then
  redis.call('DEL', limiter.value, limiter.records)
else
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
end
if limiter.keep == 0 and (int(config[3]) or 0) > 0 then
  -- What kept the limiter alive is gone, so its time must not run out.
  limiter.life = -1
  redis.call('PERSIST', limiter.name)
  redis.call('PERSIST', limiter.value)
  redis.call('PERSIST', limiter.records)
end
renew(limiter)
return { 1, limiter.notes }
