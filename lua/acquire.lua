-- acquire.lua grants permits to the callers of one call. With no caller it counts expired permits back and tells what is
-- free, as Redisson's availablePermits does.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 now (ms; '': this server's clock), 2 record prefix, 3 flags, 4 how many of the groups are strict,
--       5 where the groups begin, [6 rate, 7 interval (ms), 8 type, 9 keep-alive (ms), if the caller has a rate,]
--       then the groups, in order: size, count, size, count, ...
--       flags: eight letters, each in its place, '-' where not set:
--       r a record for each grant, u grant a part of the (only) size rather than nothing, d tell when permits will be
--       free, p only look, w set the caller's rate where none is, e report another rate in force, b finish a rebuild,
--       q the queue goes on behind the strict groups, so nobody but these gets anything
-- reply 1 status (0, 1 to 7 not initialised: config.lua, 8 another rate is in force), then with status 0:
--       2 now (ms), 3 rate, 4 interval (ms), 5 permits free after all, 6 notes (open.lua),
--       7 whose record lives when something is refused (origin.lua): another Go client's if one was met, else the
--         oldest one's; -2 without a record,
--       8 ms until all permits are free (0 unless granted or asked for),
--       then two a group: how many of it are granted (-1: its size exceeds the rate; with u: permits granted), and ms until
--       the permits of its first refused caller are free (with d, or where a group is strict; else 0)
--
-- A strict group's callers wait in line: when one is refused, nobody behind gets anything. Behind the strict groups each
-- group takes what it can.
--
-- The calls to Redis of a grant with nothing expired: HMGET the configuration, GET the free permits, ZRANGE the oldest
-- record (has anything expired?), PTTL (the life time to pass on), ZADD the record, INCRBY the free permits. Expired
-- records cost three more: ZRANGEBYSCORE and ZREMRANGEBYRANK, and the ZRANGE of who is oldest then; a refusal two: ZCARD,
-- and ZRANGE of what it adds up or walks.

--@include numbers
--@include permits
--@include clock
--@include config
--@include open
--@include add
--@include close

local NO = 45 -- '-'
local each, partly, told, look, gives, enforced, rebuild, queued = string.byte(ARGV[3], 1, 8)
local groups = tonumber(ARGV[5])
local limiter, fault = configured(0, groups > 6 and 6)
if not limiter then
  return { enforced ~= NO and 8 or fault }
elseif enforced ~= NO and limiter.notes == DIFFERS then
  return { 8 }
end
if look ~= NO and not limiter.set then
  limiter.keep = 0
end
local now = clock(ARGV[1])
settle(limiter, now, rebuild ~= NO)

local answer = { 0, now, limiter.rate, limiter.interval, 0, 0, -2, 0, 0, 0 }
local strict, last = tonumber(ARGV[4]), #ARGV
local free, refused

-- grant decides who gets what.
local function grant()
  free, refused = limiter.free, false
  local blocked = false
  for i = groups, last, 2 do
    local size, count, given = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), 0
    blocked = blocked or queued ~= NO and i - groups >= 2 * strict
    if size > limiter.rate and partly == NO then
      given = -1
    elseif partly ~= NO then
      given = math.max(0, math.min(size, free))
      free = free - given
    elseif blocked or free < size then
      refused = true
      blocked = blocked or i - groups < 2 * strict
    else
      given = math.min(count, math.floor(free / size))
      free = free - given * size
      if given < count then
        refused = true
        blocked = i - groups < 2 * strict
      end
    end
    answer[9 + i - groups] = given
    answer[10 + i - groups] = 0
  end
end

grant()
if refused and not limiter.more then
  --@include refusal
  --@include origin
  if looked(limiter) then
    grant()
  end
  if told ~= NO or strict > 0 then
    local known = {} -- sizes are few, callers many
    for i = groups, last, 2 do
      local size, given = ARGV[i], answer[9 + i - groups]
      if given >= 0 and given < tonumber(ARGV[i + 1]) then
        known[size] = known[size] or wait(limiter, free, tonumber(size))
        answer[10 + i - groups] = known[size]
      end
    end
  end
  if told ~= NO then
    answer[8] = lasting(limiter)
  end
  if limiter.oldest then
    answer[7] = origin(limiter.oldest)
    if strict > 0 then
      local other
      answer[7], other = strangers(limiter.walked, ARGV[2], answer[7])
      limiter.notes = limiter.notes + (other and 2048 or 0)
    end
  end
end

if limiter.set then
  redis.call('HSET', limiter.name, unpack(limiter.set))
end
local taken = limiter.free - free
if taken > 0 then
  if each == NO or partly ~= NO then
    add(limiter.records, ARGV[2], taken, now)
  else
    --@include after
    local prefix = ARGV[2]
    for i = groups, last, 2 do
      for _ = 1, answer[9 + i - groups] do
        prefix = after(add(limiter.records, prefix, tonumber(ARGV[i]), now))
      end
    end
  end
  answer[8] = limiter.interval
  limiter.free = free
end
save(limiter)
renew(limiter)
answer[5], answer[6] = math.max(0, free), limiter.notes
if groups > last then
  answer[9], answer[10] = nil, nil
end
return answer
