-- state.lua reads a limiter and changes nothing, not even what has expired. It reads every record,
-- unless only the configuration is wanted.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 client_now  ms; '': this server's clock
--       2 flags       c configuration alone
-- reply 1 status      0; 1 to 7 not initialised: config.lua
--       with status 0:
--       2 rate
--       3 interval    ms
--       4 type
--       5 keep_alive  ms
--       without c:
--       6 free        permits
--       7 used        permits in live records
--       8 count       live records
--       9 oldest      time of the oldest of them (us; 0: none)
--      10 newest      time of the newest of them (us; 0: none)
--      11 ttl         of the configuration (ms; -1: none)
--      12 consistent  1 if free permits and records add up to the rate, else 0

--@include base
--@include record
--@include config
--@include state
local client_now, only_config = ARGV[1], ARGV[2] == 'c'
local limiter, fault = read_config(0)
if not limiter then
  return { fault }
end
local reply = { 0, limiter.rate, limiter.interval, limiter.own and 1 or 0, limiter.keep_alive }
if only_config then
  return reply
end

local PAGE = 5000 -- records that are read at a time
local cutoff = read_clock(client_now) - limiter.interval
local stored = call('GET', limiter.value)
local expired, used, doubtful, count, all = 0, 0, 0, 0, 0
local oldest, newest = 0, 0
repeat
  local page = call('ZRANGE', limiter.records, all, all + PAGE - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    local score, permits = tonumber(page[i + 1]), permits_of(page[i])
    if score <= cutoff then
      expired = expired + permits
    else
      count = count + 1
      if is_doubtful(permits, limiter.rate) then
        doubtful = doubtful + permits
      else
        used = used + permits
      end
      newest = to_micros(math.min(score, MAX_NUMBER))
      oldest = count == 1 and newest or oldest
    end
  end
  all = all + #page / 2
until #page < 2 * PAGE

local counted = parse_value(stored)
used = used + believed(limiter.rate, counted and counted + expired, used, doubtful)
local free, consistent = check_consistency(limiter.rate, stored, counted, all, count, expired, used)
local ttl = call('PTTL', limiter.name)
for _, figure in ipairs({ free, used, count, oldest, newest, ttl, consistent and 1 or 0 }) do
  reply[#reply + 1] = figure
end
return reply
