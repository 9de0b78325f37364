-- glance.lua reads a limiter as state.lua does, but few records, however many there are: it can be
-- run for thousands of limiters.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 client_now  ms; '': this server's clock
-- reply as state.lua, then
--      13 estimated   1 if used, consistent and free are estimates: there are too many records, so
--                     the free permits are trusted

--@include base
--@include record
--@include config
--@include state
local client_now = ARGV[1]
local limiter, fault = read_config(0)
if not limiter then
  return { fault }
end
local rate, records, now = limiter.rate, limiter.records, read_clock(client_now)
local stored = call('GET', limiter.value)
local counted = parse_value(stored)
local all, expired_count = call('ZCARD', records), call('ZCOUNT', records, '-inf', now - limiter.interval)
local count = all - expired_count

-- read_ranks returns n records from a rank on; nil if that is too many.
local function read_ranks(first, n)
  if n > 2000 then
    return nil
  end
  return n > 0 and call('ZRANGE', records, first, first + n - 1) or {}
end

local function score_at(rank)
  return count > 0 and to_micros(math.min(tonumber(read_record(records, rank)[2]), MAX_NUMBER)) or 0
end

local live, gone = read_ranks(expired_count, count), read_ranks(0, expired_count)
local used, doubtful
local expired = gone and sum_permits(gone)
local estimated = not (live and gone)
if live then
  used, doubtful = sum_permits(live, rate)
  used = used + believed(rate, counted and expired and counted + expired, used, doubtful)
else
  used = counted and math.max(0, rate - math.max(0, counted) - (expired or 0)) or rate
end
if not expired then
  expired = counted and rate - used - counted or 0
end
local free, consistent = check_consistency(rate, stored, counted, all, count, expired, used)
return {
  0,
  rate,
  limiter.interval,
  limiter.own and 1 or 0,
  limiter.keep_alive,
  free,
  used,
  count,
  score_at(expired_count),
  score_at(-1),
  call('PTTL', limiter.name),
  consistent and 1 or 0,
  estimated and 1 or 0,
}
