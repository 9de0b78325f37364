-- refusal.lua finds out, once permits are refused, whether that is right and when they will be free.
--
-- takes  what settle.lua sets; at, the score of what is granted
-- sets   free and notes, raised where free permits were forgotten: never lowered, since after a release by Redisson there
--        are more permits than the rate on purpose; raised, whether they were; walked, live records as they return, with
--        their scores; wait and lasting

-- How many records a refusal adds up, to find free permits that were forgotten; and how many it walks to tell a time.
local CHECKED, WALKED = 256, 512
--@include permits

local alive, raised = call('ZCARD', records) - dead, false
local walked
if alive > CHECKED then
  walked = { oldest, since }
else
  walked = call('ZRANGE', records, dead, dead + CHECKED - 1, 'WITHSCORES')
  local live = 0
  for i = 1, #walked, 2 do
    live = live + permits(walked[i])
  end
  if free + live < rate then
    free, notes, raised = rate - live, notes + LOW, true
  end
end

-- delay answers how many ms from now a record of the given score counts.
local function delay(score)
  return math.max(1, math.min(MOST, math.ceil(score + interval - now)))
end

-- wait answers how many ms from now a size will be free, if nobody else takes it, where so many permits are left and so
-- many were taken: at least so long, where the records are too many to walk.
local function wait(size, left, taken)
  local have, ours, granted = left, taken, tonumber(at)
  for i = 1, #walked, 2 do
    local score = tonumber(walked[i + 1])
    if ours > 0 and score > granted then
      have, ours = have + ours, 0
      if have >= size then
        return delay(granted)
      end
    end
    have = have + permits(walked[i])
    if have >= size then
      return delay(score)
    end
  end
  if alive <= #walked / 2 then
    return delay(granted)
  elseif #walked > 2 then
    return delay(tonumber(walked[#walked]))
  end
  walked = call('ZRANGE', records, dead, dead + WALKED - 1, 'WITHSCORES')
  return wait(size, left, taken)
end

-- lasting answers how many ms from now all permits will be free, if nobody takes any, where so many were taken.
local function lasting(taken)
  local newest, granted = walked[#walked], tonumber(at)
  if alive > #walked / 2 then
    newest = call('ZRANGE', records, '-1', '-1', 'WITHSCORES')[2]
  end
  if taken > 0 then
    newest = math.max(newest and tonumber(newest) or granted, granted)
  end
  return newest and delay(tonumber(newest)) or 0
end
