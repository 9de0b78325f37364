-- repair.lua: free permits that do not agree with the records.

-- sum_live adds up the live records, up to about 2,000 in all limiters of the call. It returns the records in order, their
-- permits, and whether there may be more.
local function sum_live(records, expired_count)
  local limit = math.floor(2000 * 5 / #KEYS)
  local page = call('ZRANGE', records, expired_count, expired_count + limit - 1)
  return page, sum_permits(page), #page == limit
end

-- rebuild_value sets the free permits of a state from the records, and notes why. Nothing is free while more expired records
-- remain than leave in one call (the call that removes the last of them rebuilds), or while there are more live records than
-- one call adds up (until recount.lua has). After the rate was lowered, free permits below 0 can be correct: that is checked
-- where the records are few.
local function rebuild_value(limiter, state, rebuild)
  local counted, rate = state.counted, limiter.rate
  local total = counted and counted + state.expired_permits
  local why
  if not state.stored then
    why = MISSING
  elseif not counted then
    why = find(state.stored, '^%-%d+$') and NEGATIVE or GARBLED
  elseif counted > rate then
    why = ABOVE
  elseif not state.oldest then
    why = total ~= rate and EMPTY or 0
  elseif counted < 0 and total <= rate and not rebuild then
    why = NEGATIVE
  else
    why = DRIFTED
  end
  if not state.oldest then
    -- All is free without a record. A limiter that was never used has neither records nor value.
    if state.stored or state.expired_count > 0 then
      state.notes = state.notes + why
    end
    state.free, state.more = rate, false
  elseif counted and why == NEGATIVE and call('ZCARD', limiter.records) - state.expired_count > 256 then
    state.free = total
  elseif state.more then
    state.free, state.notes = 0, state.notes + why + REBUILD_PENDING
  else
    local _, sum, many = sum_live(limiter.records, state.expired_count)
    state.many, state.free = many, many and 0 or rate - sum
    if why ~= NEGATIVE or state.free ~= total then
      state.notes = state.notes + why
    end
  end
end

-- remove_surplus takes permits out of the oldest records, given in order, and returns how many these did not hold. It writes
-- at once, first what a full server refuses: the state is better afterwards even if the rest of the script fails.
local function remove_surplus(records, oldest, surplus)
  local gone, rest = {}, nil
  for i = 1, #oldest do
    if surplus == 0 then
      break
    end
    local held = permits_of(oldest[i])
    gone[i] = oldest[i]
    if held > surplus then
      rest = held - surplus
    end
    surplus = math.max(0, surplus - held)
  end
  if rest then
    local shrunk = gone[#gone]
    add_record(records, string.sub(shrunk, 1, -5), rest, call('ZSCORE', records, shrunk))
  end
  call('ZREM', records, unpack(gone))
  return surplus
end

-- check_records compares the free permits with the live records. Free permits that were lost are added (LOW). A surplus
-- (HIGH) is taken out of the oldest records, whatever caused it: the free permits stay. So permits that Redisson's release
-- gave back are granted once and do not return a second time; and of what was granted before the rate was lowered, the
-- newest permits stay counted.
local function check_records(limiter, state)
  local page, sum, many = sum_live(limiter.records, state.expired_count)
  state.many = many
  if many then
    return
  end
  local surplus = state.free + sum - limiter.rate
  if surplus < 0 then
    state.free, state.notes = state.free - surplus, state.notes + LOW
  elseif surplus > 0 then
    state.notes = state.notes + HIGH
    remove_surplus(limiter.records, page, surplus)
    state.oldest, state.oldest_score = unpack(read_record(limiter.records, state.expired_count))
  end
end
