-- charge.lua counts permits that were used, whether they are free or not, at several limiters or at
-- one. What is not free is a debt: the free permits are then negative.
--
-- KEYS  five a limiter: config, value, client value, permits, client permits
-- ARGV  1 client_now       ms, up to three decimals
--       2 age              ms since the first attempt of the call was made; '': this is the first
--       then for each limiter:
--         record           of all that is charged; if one cannot hold it, only its prefix counts
--         configured_rate  the caller's rate, "rate interval type keep-alive"; '': none
--         flags            ENFORCE, REBUILD, CHECK, WHOLE_SCORES, SERVER_TIME
--         granularity      ms; '': none
--         since            ms: a time before the first attempt; records from then on are searched
--         id_count         how many ids are searched; 1: what was counted is not searched
--         wanted           permits
--         most             a debt has at most the permits of so many intervals
-- reply 1 status           0; else as in acquire.lua, and then
--       2 failed           the number of the limiter that has it, from 0
--       with status 0, for each limiter:
--         now              us
--         rate
--         interval         ms
--         free             permits afterwards; below 0: a debt
--         counted          permits: fewer than wanted if the debt is as large as it may be
--         notes            base.lua
--         first            us until a permit is free (0: one is, or none ever will be)
--         next             us until the next permit returns (0: none is in use)
--         reset            us until all permits are free
--
-- Each permit counts from when a caller that waits would have it (debt.lua). A retry searches the
-- records of the charge: all were written, or none was.

--@include base
--@include flags
--@include record
--@include record_expiry
--@include config
--@include state
--@include limiters
--@include commit
--@include keep_alive
--@include grant
--@include debt
local client_now, age = ARGV[1], tonumber(ARGV[2])
local ARGUMENTS = 8 -- of a limiter
local limiters = #KEYS / 5

-- read_part returns what is asked of a limiter, numbered from 0, with its configuration and its
-- state; or nil and a status. found: an earlier attempt was executed, and counted so much.
local function read_part(number, found)
  local record, configured_rate, flags, granularity, _, _, wanted, most =
    unpack(ARGV, 3 + ARGUMENTS * number, 2 + ARGUMENTS * (number + 1))
  local own_clock = not find(flags, SERVER_TIME, 1, true)
  local limiter, state, now = read_limiter(
    number, configured_rate ~= '' and configured_rate or nil, flags, own_clock and client_now or '', found
  )
  if not limiter then
    return nil, state
  end
  wanted = tonumber(wanted)
  return {
    limiter = limiter,
    state = state,
    now = now,
    record = record,
    prefix = string.sub(record, 1, -5),
    granularity = tonumber(granularity),
    whole_scores = find(flags, WHOLE_SCORES, 1, true),
    own_clock = own_clock,
    wanted = wanted,
    counted = found or math.max(0, math.min(wanted, state.free + tonumber(most) * limiter.rate)),
  }
end

-- find_charge returns what an earlier attempt counted at each limiter; false if it was not
-- executed, nil if that is no longer known. Where its permits are not searched, it counted all that
-- is wanted.
local function find_charge()
  --@include find_attempt
  local counted, executed, known = {}, false, true
  for i = 0, limiters - 1 do
    local record, configured_rate, _, granularity, since, id_count, wanted =
      unpack(ARGV, 3 + ARGUMENTS * i, 9 + ARGUMENTS * i)
    local limiter = read_config(5 * i, configured_rate ~= '' and configured_rate or nil)
    counted[i] = tonumber(wanted)
    if limiter then
      call('GET', limiter.value) -- fails before anything is written if the key has another type
      local shared, prefix = granularity ~= '', string.sub(record, 1, -5)
      local attempt, share =
        find_attempt(limiter.records, prefix, tonumber(id_count), tonumber(since), not shared and record, shared, '')
      executed = executed or attempt and #attempt > 0
      known = known and attempt and age < limiter.interval -- else its records may have expired
      counted[i] = id_count ~= '1' and share or counted[i]
    end
  end
  if executed then
    return counted
  elseif known then
    return false
  end
end

-- write writes what a limiter counts. It returns false, and writes nothing, if the record of all
-- that is charged exists because a later attempt of this call was executed before. Only the first
-- limiter tells.
local function write(one, first)
  local limiter, records, prefix = one.limiter, one.limiter.records, one.prefix
  if limiter.missing then
    call('HSET', limiter.name, unpack(limiter.missing))
  end
  for _, dated in ipairs(one.dated) do
    local score, permits = dated.score, dated.permits
    if one.granularity then
      local joined, held = find_own_record(records, score, prefix, permits)
      prefix = add_record(records, share_prefix(prefix, permits), permits + held, score)
      if joined then
        call('ZREM', records, joined)
      end
    elseif permits ~= one.wanted or permits > MAX_RECORD then
      prefix = add_record(records, prefix, permits, score)
    elseif call('ZADD', records, 'NX', score, one.record) == 0 then
      if first and one.own_clock and tonumber(call('ZSCORE', records, one.record)) >= score then
        return false
      end
      add_record(records, prefix, permits, score)
    end
    prefix = next_prefix(prefix)
  end
  commit(limiter, one.state, one.free)
  apply_ttl(limiter, one.state.ttl, one.now)
  return true
end

local found = false
if age then
  found = find_charge()
  if found == nil then
    return { 9, 0 }
  end
end
local all = {}
for i = 0, limiters - 1 do
  local one, status = read_part(i, found and found[i])
  if not one then
    return { status, i }
  end
  all[i + 1] = one
end
for _, one in ipairs(all) do
  local counted = found and 0 or one.counted -- by this attempt
  one.free = one.state.free - counted
  one.dated, one.first, one.newest = charge_dates(one, counted)
end
local reply = { 0 }
for i, one in ipairs(all) do
  if not write(one, i == 1) then
    return { 9, 0 }
  end
  local limiter, state, now = one.limiter, one.state, one.now
  local oldest = state.oldest and tonumber(state.oldest_score)
  local earliest = one.dated[1] and math.min(oldest or MAX_NUMBER, one.dated[1].score) or oldest
  local at = 9 * i - 8
  reply[at + 1], reply[at + 2], reply[at + 3] = to_micros(now), limiter.rate, limiter.interval
  reply[at + 4], reply[at + 5] = one.free, one.counted
  reply[at + 6], reply[at + 7] = state.notes, one.first and expires_in(state, one.first - limiter.interval) or 0
  reply[at + 8] = earliest and expires_in(state, earliest) or 0
  reply[at + 9] = one.newest and expires_in(state, one.newest) or 0
end
return reply
