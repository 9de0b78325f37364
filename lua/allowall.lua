-- allowall.lua asks several limiters for one request: all of them grant, or none does.
--
-- KEYS  five a limiter: config, value, client value, permits, client permits
-- ARGV  six a limiter: permits, now (ms, up to three decimals; '': this server's clock), the prefix of a record, flags (e
--       refuse if the configured rate is another one, else the caller's rate is set where none is; b finish a rebuild; s
--       compare the free permits with the records; w scores in whole ms), the caller's rate ("rate interval type
--       keep-alive"; '': none), granularity (ms; 0: none); then, if an earlier attempt of the same request is searched, one a
--       limiter: the time of that attempt (ms), or an earlier one
-- reply 1 status (0; else as in acquire.lua, of the limiter whose number, from 0, follows), then with status 0 eight a
--       limiter: 1 granted if all grant (1 yes, 0 no, -1 more than its rate), now (us), rate, interval (ms), permits free
--       afterwards, notes (base.lua), us until the permits are free, us until all are free

--@include base
--@include time
--@include record
--@include add
--@include config
--@include state
--@include grant
--@include join
--@include refusal
--@include recover
--@include commit

-- read_request returns what is asked of a limiter, numbered from 0.
local function read_request(number)
  local at = 6 * number
  local granularity = tonumber(ARGV[at + 6])
  return {
    wanted = tonumber(ARGV[at + 1]),
    client_now = ARGV[at + 2],
    prefix = ARGV[at + 3],
    flags = ARGV[at + 4],
    configured_rate = ARGV[at + 5] ~= '' and ARGV[at + 5] or nil,
    granularity = granularity > 0 and granularity or nil,
  }
end

local function score_of(request, limiter, now)
  return grant_score(now, limiter.interval, request.granularity, find(request.flags, 'w', 1, true))
end

-- recover_all searches for an earlier attempt. It returns whether that was granted, with the scores of its records raised,
-- and a reply if that is no longer known.
local function recover_all(count)
  local attempts, missing = {}, 0
  for i = 0, count - 1 do
    local request = read_request(i)
    local limiter = read_config(5 * i, request.configured_rate)
    if not limiter then
      missing = missing + 1 -- the limiter was deleted
    else
      local wanted, shared = request.wanted, request.granularity ~= nil
      local score = score_of(request, limiter, read_clock(request.client_now))
      local id_count = wanted > MAX_RECORD and math.floor(wanted / MAX_RECORD) + 1 or 1
      local whole = id_count == 1 and not shared and request.prefix .. permit_bytes(wanted) or nil
      call('GET', limiter.value) -- fails before anything is written if the key has another type
      local since = tonumber(ARGV[6 * count + 1 + i])
      local attempt, share = find_attempt(limiter.records, request.prefix, id_count, since, whole, shared, '')
      if not attempt or #attempt > 0 and share ~= wanted then
        return false, { 9, i }
      end
      missing = missing + (#attempt > 0 and 0 or 1)
      attempts[#attempts + 1] = { limiter.records, attempt, score }
    end
  end
  if missing > 0 then
    return false, missing < count and { 9, 0 } or nil -- expired in one limiter, and live in another
  end
  for _, attempt in ipairs(attempts) do
    refresh_scores(unpack(attempt))
  end
  return true
end

-- decide reads a limiter, and returns whether it would grant; or nil and a status.
local function decide(number, recovered)
  local request = read_request(number)
  local flags, wanted = request.flags, request.wanted
  local limiter, fault = read_config(5 * number, request.configured_rate)
  local enforced = find(flags, 'e', 1, true)
  if not limiter or enforced and limiter.mismatch and not recovered then
    return nil, enforced and 8 or fault
  end
  local now = read_clock(request.client_now)
  local state = load_state(limiter, now, find(flags, 'b', 1, true), find(flags, 's', 1, true))
  state.notes = state.notes + (limiter.mismatch and RATE_MISMATCH or 0)
  local score, bucketed = score_of(request, limiter, now)
  local decision = {
    request = request,
    limiter = limiter,
    state = state,
    now = now,
    score = score,
    granted = 1,
    wait = 0,
    reset_in = to_micros(score + limiter.interval - now),
    held = 0,
  }
  if recovered then
    return decision
  end
  if bucketed then
    decision.joined, decision.held = find_own_record(limiter.records, score, request.prefix, wanted)
  end
  if wanted > limiter.rate then
    decision.granted, decision.reset_in = -1, 0
  elseif wanted > state.free then
    if not state.more then
      walk_records(limiter, state)
    end
    if wanted > state.free then
      decision.granted, decision.reset_in = 0, 0
      if not state.more then
        decision.wait = free_in(limiter, state, wanted, state.free, 0, score)
        decision.reset_in = all_free_in(limiter, state, 0, score)
      end
    end
  end
  return decision
end

local count = #KEYS / 5
local recovered = false
if ARGV[6 * count + 1] then
  local unknown
  recovered, unknown = recover_all(count)
  if unknown then
    return unknown
  end
end

-- Decide.
local decisions, all = {}, true
for i = 0, count - 1 do
  local decision, status = decide(i, recovered)
  if not decision then
    return { status, i }
  end
  decisions[i + 1] = decision
  all = all and decision.granted == 1
end
for _, d in ipairs(decisions) do
  if not all and d.granted == 1 and not d.state.more then -- it takes nothing: another limiter refused
    walk_records(d.limiter, d.state)
    d.reset_in = all_free_in(d.limiter, d.state, 0, d.score)
  end
end

-- Write.
local reply = { 0 }
for _, d in ipairs(decisions) do
  local request, limiter, state = d.request, d.limiter, d.state
  if limiter.missing then
    call('HSET', limiter.name, unpack(limiter.missing))
  end
  local left = state.free
  if all and not recovered then
    add_record(limiter.records, request.prefix, request.wanted + d.held, d.score)
    if d.joined then
      call('ZREM', limiter.records, d.joined)
    end
    left = left - request.wanted
  end
  commit(limiter, state, left)
  apply_ttl(limiter, state.ttl)
  local figures =
    { d.granted, to_micros(d.now), limiter.rate, limiter.interval, math.max(0, left), state.notes, d.wait, d.reset_in }
  for _, figure in ipairs(figures) do
    reply[#reply + 1] = figure
  end
end
return reply
