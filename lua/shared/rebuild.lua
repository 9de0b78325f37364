-- rebuild.lua computes the free permits anew from the records, where what is stored can't be right, and notes why.

-- live adds up the permits of the records from a rank on.
local function live(records, rank)
  local total = 0
  while true do
    local page = redis.call('ZRANGE', records, rank, rank + PAGE - 1)
    for i = 1, #page do
      total = total + permits(page[i])
    end
    if #page < PAGE then
      return total
    end
    rank = rank + PAGE
  end
end

-- rebuilt answers the free permits. While more expired records remain than leave in one call, nothing is free: the call
-- that removes the last of them rebuilds. They are below 0 while more is granted than a rate that was lowered since: that
-- is checked where the records are few.
local function rebuilt(limiter, stored, free, dead, back, oldest, more, rebuild)
  local MISSING, GARBLED, NEGATIVE, ABOVE, DRIFTED, EMPTY, UNBUILT = 1, 2, 4, 8, 16, 32, 512
  local why
  if not stored then
    why = MISSING
  elseif not free then
    why = (int(stored) or 0) < 0 and NEGATIVE or GARBLED
  elseif free > limiter.rate then
    why = ABOVE
  elseif oldest and free < 0 and free + back <= limiter.rate and not rebuild then
    why = NEGATIVE
    if redis.call('ZCARD', limiter.records) - dead > 256 then
      return free + back, more
    end
  elseif not oldest then
    why = free + back ~= limiter.rate and EMPTY or 0
  else
    why = DRIFTED
  end
  if not oldest then
    -- Without a record all is free. A limiter that nobody has used yet has neither record nor value.
    limiter.notes = limiter.notes + ((stored or dead > 0) and why or 0)
    return limiter.rate, false
  end
  if more then
    limiter.notes = limiter.notes + why + UNBUILT
    return 0, true
  end
  local rest = limiter.rate - live(limiter.records, dead)
  if not free or why ~= NEGATIVE or rest ~= free + back then
    limiter.notes = limiter.notes + why
  end
  return rest, false
end
