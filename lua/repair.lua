-- repair.lua computes the free permits from the records, or removes both. It reads every record.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 client_now  ms; '': this server's clock
--       2 flags       d change nothing, r remove the records
-- reply 1 status      0; 1 to 7 not initialised: config.lua
--       with status 0:
--       2 change      1 if something is, or is to be, changed, else 0
--       3 kind        of what was stored: 0 a number, 1 nothing, 2 no number
--       4 counted     that number
--       5 free        what is right
--       6 all         records
--       7 held        permits in them
--       8 blocked     ms until a permit is free by these (0: one is now)

--@include base
--@include record
--@include config
--@include state
--@include keep_alive
local client_now, dry, reset = ARGV[1], find(ARGV[2], 'd', 1, true), find(ARGV[2], 'r', 1, true)
local limiter, fault = read_config(0)
if not limiter then
  return { fault }
end
local rate, records, now = limiter.rate, limiter.records, read_clock(client_now)
local stored = call('GET', limiter.value)
local counted = parse_value(stored)

local PAGE = 5000 -- records that are read at a time
local held, doubtful, all = 0, 0, 0
local last -- from the newest on, the record with which all permits are in use: a permit is free when it expires
repeat
  local page = call('ZRANGE', records, -all - PAGE, -all - 1)
  for i = #page, 1, -1 do
    local permits = permits_of(page[i])
    if is_doubtful(permits, rate) then
      doubtful = doubtful + permits
    else
      held = held + permits
    end
    if held >= rate and not last then
      last = page[i]
    end
  end
  all = all + #page
until #page < PAGE
held = held + believed(rate, counted, held, doubtful)

local free = reset and rate or math.max(rate - held, 1 - MAX_NUMBER)
local blocked = 0
if last and not reset then
  local expires_in = tonumber(call('ZSCORE', records, last)) + limiter.interval - now
  blocked = math.max(0, math.ceil(math.min(MAX_NUMBER, expires_in)))
end
local change = (stored or all > 0) and (reset or counted ~= free)
if change and not dry then
  if reset then
    call('UNLINK', limiter.value, records)
  else
    local ttl = limiter.keep_alive == 0 and call('PTTL', limiter.name) or -1
    call('SET', limiter.value, string.format('%.0f', free))
    apply_ttl(limiter, ttl, now)
  end
end
return { 0, change and 1 or 0, not stored and 1 or not counted and 2 or 0, counted or 0, free, all, held, blocked }
