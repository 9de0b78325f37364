-- state.lua: the free permits and the records of a limiter: load_state counts expired permits back,
-- and repairs the free permits where they are wrong.

-- read_record returns the record of a rank, and its score as text; an empty table if there is none.
local function read_record(records, rank)
  return call('ZRANGE', records, rank, rank, 'WITHSCORES')
end

-- load_state reads the state of a limiter, without the records that have expired. It writes only
-- what repairs a surplus: Redis does not undo the first half of a script whose second half fails,
-- so a script reads everything, decides, and then writes (commit.lua). rebuild: this call finishes
-- a rebuild; check: compare with the records though nothing seems wrong. It returns a table: stored
-- (text), counted (the same as a number, or nil), free (with the expired permits), expired_count
-- and expired_permits (the records that leave with this call), more (others remain), many (there
-- are too many live records to check), oldest and oldest_score (the oldest record that stays, and
-- its score as text, or nil), cutoff (the highest expired score), ttl (ms, to be applied to the
-- state; below 0: none), notes.
local function load_state(limiter, now, rebuild, check)
  local records, cutoff = limiter.records, now - limiter.interval
  local stored, oldest, expired = call('GET', limiter.value), read_record(records, '0'), {}
  if oldest[1] and tonumber(oldest[2]) <= cutoff then
    expired = call('ZRANGEBYSCORE', records, '-inf', cutoff, 'LIMIT', '0', MAX_EXPIRED)
    oldest = read_record(records, #expired)
  end
  local expired_permits = sum_permits(expired)
  local counted = parse_value(stored)
  local state = {
    stored = stored,
    counted = counted,
    free = counted and counted + expired_permits,
    expired_count = #expired,
    expired_permits = expired_permits,
    more = #expired == MAX_EXPIRED and oldest[1] and tonumber(oldest[2]) <= cutoff,
    many = false,
    oldest = oldest[1],
    oldest_score = oldest[2],
    cutoff = cutoff,
    ttl = -1,
    notes = 0,
  }
  local wrong = not counted or counted < 0 or state.free > limiter.rate or not state.oldest or rebuild
  if wrong or check then
    -- Few calls come here, so these functions are not defined for the others.
    --@include grant

    -- sum_live adds up the live records, up to about 2,000 in all limiters of the call. If all are
    -- read, the doubtful ones are replaced by one record with the permits that count (believed,
    -- record.lua). It returns the records in order, their permits, and whether there may be more.
    local function sum_live(limiter, state)
      local records, rate, limit = limiter.records, limiter.former or limiter.rate, math.floor(2000 * 5 / #KEYS)
      local page = call('ZRANGE', records, state.expired_count, state.expired_count + limit - 1)
      local sum, doubtful = sum_permits(page, rate)
      local held = believed(rate, state.counted and state.counted + state.expired_permits, sum, doubtful)
      if held < doubtful and #page < limit then
        local gone = {}
        for i = 1, #page do
          if is_doubtful(permits_of(page[i]), rate) then
            gone[#gone + 1] = page[i]
          end
        end
        local last = gone[#gone]
        if held > 0 then
          add_record(records, string.sub(last, 1, -5), held, call('ZSCORE', records, last))
        end
        call('ZREM', records, unpack(gone))
        page = call('ZRANGE', records, state.expired_count, '-1')
        state.oldest, state.oldest_score = unpack(read_record(records, state.expired_count))
      end
      return page, sum + held, #page == limit
    end

    -- rebuild_value sets the free permits of a state from the records, and notes why. Nothing is
    -- free while more expired records remain than leave in one call (the call that removes the last
    -- of them rebuilds), or while there are more live records than one call adds up (until
    -- recount.lua has). After the rate was lowered, free permits below 0 can be correct: that is
    -- checked where the records are few.
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
        -- All is free without a record. A limiter that was never used has neither records nor
        -- value.
        if state.stored or state.expired_count > 0 then
          state.notes = state.notes + why
        end
        state.free, state.more = rate, false
      elseif counted and why == NEGATIVE and call('ZCARD', limiter.records) - state.expired_count > MAX_ADDED then
        state.free = total
      elseif state.more then
        state.free, state.notes = math.min(0, total or 0), state.notes + why + REBUILD_PENDING
      else
        local _, sum, many = sum_live(limiter, state)
        state.many, state.free = many, many and math.min(0, total or 0) or rate - sum
        if why ~= NEGATIVE or state.free ~= total then
          state.notes = state.notes + why
        end
      end
    end

    -- check_records compares the free permits with the live records. Free permits that were lost
    -- are added (LOW). A surplus (HIGH) is taken out of the oldest records, whatever caused it: the
    -- free permits stay. So permits that Redisson's release gave back are granted once and do not
    -- return a second time; and of what was granted before the rate was lowered, the newest permits
    -- stay counted.
    local function check_records(limiter, state)
      local page, sum, many = sum_live(limiter, state)
      state.many = many
      if many then
        return
      end
      local surplus = state.free + sum - limiter.rate
      if surplus < 0 then
        state.free, state.notes = state.free - surplus, state.notes + LOW
      elseif surplus > 0 then
        state.notes = state.notes + HIGH
        remove_surplus(limiter.records, page, limiter.rate, surplus)
        state.oldest, state.oldest_score = unpack(read_record(limiter.records, state.expired_count))
      end
    end

    if wrong then
      rebuild_value(limiter, state, rebuild)
    end
    if check and state.oldest and not state.more and not state.many then
      check_records(limiter, state)
    end
  end
  state.notes = state.notes + (state.more and MORE or 0) + (state.many and MANY or 0)
  if limiter.keep_alive == 0 then
    state.ttl = call('PTTL', limiter.name)
  end
  return state
end

-- check_consistency returns the free permits as a reader sees them, and whether value and records
-- add up to the rate. all and count are the numbers of records and of live ones; expired and used
-- the permits in expired and in live records.
local function check_consistency(rate, stored, counted, all, count, expired, used)
  if count == 0 then
    return rate, counted and counted + expired == rate or all == 0 and not stored
  elseif not counted or counted + expired > rate then
    return math.max(0, rate - used), false
  end
  local by_records = counted < 0 and count <= MAX_ADDED -- as rebuild_value does
  local believed = by_records and 0 or counted + expired
  return math.max(0, believed, rate - used), counted + expired + used == rate
end
