-- debt.lua: from when on the permits of a charge count, and when a debt is paid.
local MAX_DATED = 20000 -- records that a charge walks; the others count as if they expired with the newest
local DATED_PAGE = 200 -- records that are read at a time
local DEBT_PARTS = 8 -- parts of an interval; permits of a debt that return in one of them share a record

-- last_interval returns the rank and the score of the record with whose permits a limiter in debt
-- has a free one again: the records after it hold less than the rate. The third result is how many
-- permits are free then. It returns nil if there are few records, or too many.
local function last_interval(limiter, first)
  local last, held = call('ZCARD', limiter.records) - 1, 0
  if last - first < 2 * DATED_PAGE then
    return nil
  end
  for rank = last, math.max(first, last - MAX_DATED), -DATED_PAGE do
    local page = call('ZRANGE', limiter.records, math.max(first, rank - DATED_PAGE + 1), rank, 'WITHSCORES')
    for i = #page - 1, 1, -2 do
      local permits = permits_of(page[i])
      if held + permits >= limiter.rate then
        return rank - (#page - 1 - i) / 2, tonumber(page[i + 1]), limiter.rate - held
      end
      held = held + permits
    end
  end
end

-- charge_dates returns records, each { score, permits }, that hold the counted permits of a charge.
-- Each permit counts from the time at which it is free, if nobody else takes it: now, or when a
-- record expires, which can be one of the charge itself. So an interval pays back at most the rate.
-- An interval has eight parts, at multiples of their length, and those that return in one of them
-- share a record, with the time of the last of them: a charge has about eight records for each
-- interval of the debt. In the next interval, the permits of such a record return together in the
-- same part, so none is ever late by more than an eighth of an interval. The second result is when
-- a permit is free after the charge, or an earlier time if there are too many records (ms; nil: one
-- is now, or none ever is), the third the score of the newest record (nil: there is none).
local function charge_dates(one, counted)
  local limiter, state, now = one.limiter, one.state, one.now
  local records, interval = limiter.records, limiter.interval
  local newest = state.oldest and tonumber(read_record(records, '-1')[2])
  local free, time = state.free, now
  local dated, returned = {}, 0 -- returned: how many of these have expired at that time
  local page, at, rank, more = {}, 1, state.expired_count, newest
  if free < 1 then
    local skipped, score, left = last_interval(limiter, rank)
    if skipped then
      rank, time, free = skipped + 1, math.max(now, score + interval), left
    end
  end
  local first = rank

  -- next_record returns the score and the permits of the next record that expires; nil: there is
  -- none.
  local function next_record()
    if not page[at] and more then
      page, at = call('ZRANGE', records, rank, rank + DATED_PAGE - 1, 'WITHSCORES'), 1
      rank = rank + DATED_PAGE
      more = #page == 2 * DATED_PAGE and rank - first < MAX_DATED
    end
    local own = dated[returned + 1]
    if page[at] and not (own and own.score < tonumber(page[at + 1])) then
      at = at + 2
      return tonumber(page[at - 1]), permits_of(page[at - 2])
    elseif own then
      returned = returned + 1
      return own.score, own.permits
    elseif newest and counted > 0 then
      return newest, counted
    end
  end

  while true do
    local permits = math.min(free, counted)
    if permits > 0 then
      local score = grant_score(time, interval, one.granularity, false, one.whole_scores)
      local last, part = dated[#dated], time > now and math.floor(time * DEBT_PARTS / interval)
      if last and part and last.part == part then
        last.score, last.permits = score, last.permits + permits
      else
        dated[#dated + 1] = { part = part, score = score, permits = permits }
      end
      free, counted = free - permits, counted - permits
    end
    if counted == 0 and free >= 1 then
      break
    end
    local score, held = next_record()
    if not score then
      time = limiter.rate > 0 and time or now
      break
    end
    time, free = math.max(time, score + interval), free + held
  end
  if dated[1] then
    newest = math.max(newest or 0, dated[#dated].score)
  end
  return dated, time > now and time or nil, newest or nil
end
