-- time.lua: the clock, and the score of what is granted.

-- read_clock returns the time in ms, exact to the µs: the client's, given as text, or this server's if that is ''.
local function read_clock(client_now)
  if client_now ~= '' then
    return tonumber(client_now)
  end
  local time = call('TIME')
  return (tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000
end

-- to_micros converts ms to whole µs, rounded up. A double holds a time of today to a quarter of a µs, so a smaller fraction
-- is an error of rounding.
local function to_micros(ms)
  return math.ceil(ms * 1000 - 0.3)
end

-- grant_score returns the score of a grant, and whether it is the end of a bucket. It is never earlier than now, so that no
-- window holds more than the rate. With a granularity (ms) it is the end of a bucket of time: one record then stands for all
-- that a client is granted within it. A lease lasts for at least a quarter of a bucket, so that the next one can be taken before
-- the end of the last. Without a granularity it is now, or the next whole ms if the interval is long or whole_ms: Redis
-- keeps up to 128 records in a list, and adding one takes three times as long if their scores are fractions. Redisson before
-- 3.16.4 returns waits that are too short where scores are fractions.
local function grant_score(now, interval, granularity, lease, whole_ms)
  local length = granularity and math.min(granularity, math.floor(interval / 10)) or 1
  if length > 1 then
    return math.ceil((lease and now + length / 4 or now) / length) * length, true
  elseif interval >= FRACTIONS_BELOW or whole_ms then
    return math.ceil(now), false
  end
  return now, false
end
