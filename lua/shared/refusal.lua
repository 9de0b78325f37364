-- refusal.lua finds out, once permits are refused, whether that is right and when they will be free.

-- How many records a refusal adds up, to find free permits that were forgotten; and how many it walks to tell a time.
local CHECKED, WALKED = 256, 512

-- walk reads live records in the order in which they return.
local function walk(limiter, most)
  limiter.walked = redis.call('ZRANGE', limiter.records, limiter.dead, limiter.dead + most - 1, 'WITHSCORES')
end

-- looked counts the live records. Where these are few it adds them up, and raises the free permits if they were too low:
-- then it answers true. It never lowers them: after a release by Redisson there are more permits than the rate on purpose.
local function looked(limiter)
  limiter.count = redis.call('ZCARD', limiter.records) - limiter.dead
  if limiter.count > CHECKED then
    limiter.walked = { limiter.oldest, limiter.since }
    return false
  end
  walk(limiter, CHECKED)
  local live = 0
  for i = 1, #limiter.walked, 2 do
    live = live + permits(limiter.walked[i])
  end
  if limiter.free + live >= limiter.rate then
    return false
  end
  limiter.free = limiter.rate - live
  limiter.notes = limiter.notes + 64
  return true
end

-- delay answers how many ms from now a record of the given score counts.
local function delay(limiter, at)
  return math.max(1, math.min(MOST, math.ceil(score(at) + limiter.interval - limiter.now)))
end

-- wait answers how many ms from now a size will be free, if nobody else takes it, where so many permits remain: at least
-- so long, where the records are too many to walk. What this call grants returns last, an interval from now.
local function wait(limiter, free, size)
  local walked, have = limiter.walked, free
  for i = 1, #walked, 2 do
    have = have + permits(walked[i])
    if have >= size then
      return delay(limiter, walked[i + 1])
    end
  end
  if limiter.count > 1 and #walked == 2 then
    walk(limiter, WALKED)
    return wait(limiter, free, size)
  end
  return limiter.count > #walked / 2 and delay(limiter, walked[#walked]) or limiter.interval
end

-- lasting answers how many ms from now all permits will be free, if nobody takes any.
local function lasting(limiter)
  local newest = limiter.walked[#limiter.walked]
  if limiter.count > #limiter.walked / 2 then
    newest = redis.call('ZRANGE', limiter.records, -1, -1, 'WITHSCORES')[2]
  end
  return newest and delay(limiter, newest) or 0
end
