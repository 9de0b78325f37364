-- grant.lua: the score of what is granted.

-- grant_score returns the score of a grant, and whether it is the end of a bucket. It is never earlier than now, so that no
-- window holds more than the rate. With a granularity (ms) it is the end of a bucket of time: one record then stands for all
-- that a client is granted within it. Without one it is now, or the next whole ms if the interval is long or whole_ms: Redis
-- keeps up to 128 records in a list, and adding one takes three times as long if their scores are fractions. Redisson before
-- 3.16.4 returns waits that are too short where scores are fractions.
local function grant_score(now, interval, granularity, whole_ms)
  local length = granularity and math.min(granularity, math.floor(interval / 10)) or 1
  if length > 1 then
    return math.ceil(now / length) * length, true
  elseif interval >= FRACTIONS_BELOW or whole_ms then
    return math.ceil(now), false
  end
  return now, false
end
