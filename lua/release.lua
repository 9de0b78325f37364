-- release.lua gives permits back before their time: those of the oldest grants first, so that what stays counted is
-- never older than the truth. Whole records leave; the last one shrinks.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 now (ms; '': this server's clock), 2 permits, 3 flags: b finish a rebuild
-- reply 1 status (0, 1 to 7 not initialised: config.lua), then with status 0:
--       2 notes (open.lua; with more, the caller asks again for the rest), 3 permits that came back

--@include numbers
--@include permits
--@include clock
--@include config
--@include open
--@include add
--@include close

local limiter, fault = configured(0)
if not limiter then
  return { fault }
end
settle(limiter, clock(ARGV[1]), ARGV[3] == 'b')

local wanted, back = tonumber(ARGV[2]), 0
local shrunk, at, rest
if not limiter.more then
  local page = redis.call('ZRANGE', limiter.records, limiter.dead, limiter.dead + BATCH - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    if back == wanted then
      break
    end
    local held = permits(page[i])
    if back + held > wanted then
      shrunk, at, rest = page[i], page[i + 1], back + held - wanted
      back = wanted
    else
      back = back + held
      limiter.dead = limiter.dead + 1
    end
  end
  if back < wanted and #page == 2 * BATCH then
    limiter.notes = limiter.notes + MORE
  end
  limiter.free = math.min(limiter.rate, limiter.free + back)
end

save(limiter)
if shrunk then
  redis.call('ZREM', limiter.records, shrunk)
  add(limiter.records, string.sub(shrunk, 1, -5), rest, at)
end
renew(limiter)
return { 0, limiter.notes, back }
