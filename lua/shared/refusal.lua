-- refusal.lua finds out, once permits are refused, whether that is right and when they will be free.
--
-- takes  what settle.lua sets; at, the score of what is granted
-- sets   free and notes, raised where free permits were forgotten: never lowered, since after a release by Redisson there
--        are more permits than the rate on purpose; raised, whether they were; walked, live records as they return; wait
--        and lasting

-- How many records a refusal adds up, to find free permits that were forgotten; and how many it walks to tell a time.
local CHECKED, WALKED = 256, 512
--@include permits

local alive, raised = call('ZCARD', records) - dead, false
local walked
if alive > CHECKED then
  walked = { oldest }
else
  walked = call('ZRANGE', records, dead, dead + CHECKED - 1)
  local live = 0
  for i = 1, #walked do
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

-- returning is delay for the live record of the given rank. Scores are asked for one by one: they cost Redis more than
-- members do, and few are needed.
local function returning(rank)
  if rank == 0 then
    return delay(tonumber(since))
  end
  return delay(tonumber(call('ZRANGE', records, dead + rank, dead + rank, 'WITHSCORES')[2]))
end

-- wait answers how many ms from now a size will be free, if nobody else takes it, where so many permits are left and so
-- many were taken: at least so long, where the records are too many to walk.
local function wait(size, left, taken)
  local have = left
  local before = taken > 0 and call('ZCOUNT', records, '-inf', at) - dead -- records that return before what was taken
  for i = 1, #walked do
    if before == i - 1 then
      have = have + taken
      if have >= size then
        return delay(at)
      end
    end
    have = have + permits(walked[i])
    if have >= size then
      return returning(i - 1)
    end
  end
  if alive <= #walked then
    return delay(at)
  elseif #walked > 1 then
    return returning(#walked - 1)
  end
  walked = call('ZRANGE', records, dead, dead + WALKED - 1)
  return wait(size, left, taken)
end

-- lasting answers how many ms from now all permits will be free, if nobody takes any, where so many were taken.
local function lasting(taken)
  return math.max(alive > 0 and returning(alive - 1) or 0, taken > 0 and delay(at) or 0)
end
