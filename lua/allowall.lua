-- allowall.lua asks several limiters for the requests of one batch: of each request all limiters
-- grant their part, or none does.
--
-- KEYS  five a limiter: config, value, client value, permits, client permits
-- ARGV  1 client_now       ms, up to three decimals
--       2 groups           how many groups of requests there are
--       for each group:
--         count            requests; negative if the group is strict, as in acquire.lua. 0: a
--                          strict group that keeps its sizes free of those behind it
--       for each limiter:
--         record           of all that is wanted; if one cannot hold it, only its prefix counts
--         configured_rate  the caller's rate, "rate interval type keep-alive"; '': none
--         flags            ENFORCE, REBUILD, CHECK, WHOLE_SCORES, RECORD_EACH, SERVER_TIME; of the
--                          first limiter STRICT_ONLY
--         granularity      ms; '': none
--         since            ms: the time of an earlier attempt of the same batch or before, whose
--                          records are searched first; '': there was none
--         id_count         how many ids the batch has
--         for each group:
--           size           permits of a request
-- reply 1 status           0; else as in acquire.lua, and then
--       2 failed           the number of the limiter that has it, from 0
--       with status 0:
--       2 listed           how many groups are listed at the end: none if all is granted
--       for each limiter:
--         now              us
--         rate
--         interval         ms
--         free             permits afterwards
--         next             us until the next permit returns (0: with those granted now)
--         notes            base.lua
--         reset            us until all permits are free
--         origin           the client of a record, as in acquire.lua; -2 without a refused strict
--                          group
--         together         as in acquire.lua
--       for each listed group:
--         granted          requests of it (-1: more than the rate of limiter 0; -2: of limiter 1,
--                          ...)
--         waits            one a limiter: us until it has the permits of the first refused request
--                          (0: it has them; -1: not known, so ask again)
--
-- Where plain grants will probably do, the client calls acquiremany.lua, which costs Redis half as
-- much.

--@include base
--@include flags
--@include record
--@include record_expiry
--@include config
--@include state
--@include limiters
--@include commit
--@include keep_alive
local client_now, groups, strict = ARGV[1], tonumber(ARGV[2]), 0 -- strict: how many groups are
local limiters = #KEYS / 5

-- read_numbers returns the arguments from ARGV[first] on, one a group.
local function read_numbers(first)
  local numbers = {}
  for i = 1, groups do
    numbers[i] = tonumber(ARGV[first + i - 1])
  end
  return numbers
end

-- read_request returns what is asked of a limiter, numbered from 0. total is the sum of all
-- requests.
local function read_request(number, counts)
  local first = 3 + groups + (6 + groups) * number
  local record, configured_rate, flags, granularity, since, id_count = unpack(ARGV, first, first + 5)
  local sizes, total = read_numbers(first + 6), 0
  for i = 1, groups do
    total = total + sizes[i] * counts[i]
  end
  return {
    sizes = sizes,
    total = total,
    prefix = string.sub(record, 1, -5),
    record = record,
    configured_rate = configured_rate ~= '' and configured_rate or nil,
    flags = flags,
    client_now = find(flags, SERVER_TIME, 1, true) and '' or client_now,
    granularity = tonumber(granularity),
    since = tonumber(since),
    id_count = tonumber(id_count),
  }
end

local function score_of(request, limiter, now)
  return grant_score(now, limiter.interval, request.granularity, nil, find(request.flags, WHOLE_SCORES, 1, true))
end

-- read_part returns what is asked of a limiter, numbered from 0, with its configuration and its
-- state; or nil and a status. recovered: an earlier attempt is found.
local function read_part(number, request, recovered)
  local limiter, state, now =
    read_limiter(number, request.configured_rate, request.flags, request.client_now, recovered)
  if not limiter then
    return nil, state
  end
  local score, bucketed = score_of(request, limiter, now)
  return { request = request, limiter = limiter, state = state, now = now, score = score, bucketed = bucketed }
end

-- allocate returns what is granted of each group, whether a request was refused, and whether one is
-- for more than a rate. It sets left of each limiter: the rest of its free permits, or of those in
-- available, which an earlier attempt was granted; a size above the rate may be among these. kept:
-- how many of these are kept free.
local function allocate(all, counts, available)
  local granted, refused, exceeded = {}, false, false
  local queued, blocked = find(all[1].request.flags, STRICT_ONLY, 1, true), false
  for i, one in ipairs(all) do
    one.left, one.kept = available and available[i] or one.state.free, 0
  end
  for group, wanted in ipairs(counts) do
    blocked = blocked or queued and group > strict
    local n, exceeds = blocked and 0 or wanted, nil
    for i, one in ipairs(all) do
      local size = one.request.sizes[group]
      if wanted == 0 then
        one.kept = one.kept + ((blocked or available) and 0 or size)
      elseif size > one.limiter.rate and not (available and size <= one.left) then
        exceeds = exceeds or i
      else
        n = math.max(0, math.min(n, math.floor((one.left - one.kept) / size)))
      end
    end
    if exceeds then
      granted[group], exceeded = -exceeds, true
    else
      granted[group], refused = n, refused or n < wanted
      blocked = blocked or n < wanted and group <= strict
      for _, one in ipairs(all) do
        one.left = one.left - n * one.request.sizes[group]
      end
    end
  end
  return granted, refused, exceeded
end

-- write writes what a limiter grants: records, the free permits, a TTL. It returns false, and
-- grants nothing, if the record of all that is wanted exists because a later attempt of this batch
-- was served before. Only the first limiter tells. waiting: callers that wait are refused.
local function write(one, granted, first, waiting)
  local request, limiter, state, score = one.request, one.limiter, one.state, one.score
  local prefix, records, taken = request.prefix, limiter.records, state.free - one.left
  if limiter.missing then
    call('HSET', limiter.name, unpack(limiter.missing))
  end
  if taken > 0 then
    --@include grant
    if find(request.flags, RECORD_EACH, 1, true) then
      for group, size in ipairs(request.sizes) do
        prefix = add_records(records, prefix, granted[group], size, score)
      end
    elseif request.granularity then
      local joined, held = nil, 0
      if one.bucketed then
        joined, held = find_own_record(records, score, prefix, taken)
      end
      add_record(records, share_prefix(prefix, taken), taken + held, score)
      if joined then
        call('ZREM', records, joined)
      end
    elseif taken ~= request.total or taken > MAX_RECORD or call('ZADD', records, 'NX', score, request.record) == 0 then
      local known = first and request.client_now ~= '' and call('ZSCORE', records, request.record)
      if known and tonumber(known) >= score then
        return false
      end
      add_record(records, prefix, taken, score)
    end
  end
  commit(limiter, state, one.left)
  apply_ttl(limiter, state.ttl, one.now, waiting)
  return true
end

-- Read: what an earlier attempt was granted, and the state of each limiter.
local counts, all = read_numbers(3), {}
for group, count in ipairs(counts) do
  counts[group], strict = math.abs(count), count <= 0 and group or strict
end
for i = 0, limiters - 1 do
  all[i + 1] = read_request(i, counts)
end
local available -- permits of each limiter that an earlier attempt was granted
if all[1].since then
  --@include grant
  --@include find_attempt
  local attempts, shares, missing = {}, {}, 0
  for i, request in ipairs(all) do
    local limiter = read_config(5 * (i - 1), request.configured_rate)
    if not limiter then
      missing = missing + 1 -- the limiter was deleted
    else
      local score = score_of(request, limiter, read_clock(request.client_now))
      local shared = request.granularity ~= nil
      local whole = request.id_count == 1 and not shared and request.record or nil
      call('GET', limiter.value) -- fails before anything is written if the key has another type
      local attempt, share =
        find_attempt(limiter.records, request.prefix, request.id_count, request.since, whole, shared, '')
      if not attempt then
        return { 9, i - 1 }
      end
      missing = missing + (#attempt > 0 and 0 or 1)
      attempts[i], shares[i] = { limiter.records, attempt, score }, share
    end
  end
  if missing == 0 then
    available = shares
    for _, attempt in ipairs(attempts) do
      refresh_scores(unpack(attempt))
    end
  elseif missing < limiters then
    return { 9, 0 } -- expired in one limiter, and live in another
  end
end
for i, request in ipairs(all) do
  local one, status = read_part(i - 1, request, available)
  if not one then
    return { status, i - 1 }
  end
  all[i] = one
end

-- Decide.
local granted, refused, exceeded = allocate(all, counts, available)
local waits = {}
if available then
  for i, one in ipairs(all) do
    if one.left > 0 then
      return { 9, i - 1 } -- the groups of an attempt take all that it was granted
    end
    one.left = one.state.free
  end
elseif refused then
  --@include refusal
  local raised = false
  for _, one in ipairs(all) do
    if not one.state.more then
      raised = walk_records(one.limiter, one.state) or raised
    end
  end
  if raised then
    granted = allocate(all, counts)
  end
  for i, one in ipairs(all) do
    local state, taken = one.state, one.state.free - one.left
    one.reset_in = not state.more and all_free_in(one.limiter, state, state.live_count, taken, one.score)
    waits[i] = {}
    local left = one.left - one.kept
    for group, size in ipairs(one.request.sizes) do
      if size <= left then
        waits[i][group] = 0
      elseif granted[group] >= 0 and granted[group] < counts[group] and not state.more then
        waits[i][group] = free_in(one.limiter, state, size, left, taken, one.score)
        if group <= strict and not one.together then
          one.together = together_free_in(one.limiter, state, waits[i][group], taken, one.score)
        end
      end
    end
    if strict > 0 and not state.more then
      one.origin = find_writers(state, one.request.prefix)
    end
  end
end

-- Write, and reply.
local reply = { 0, (refused or exceeded) and groups or 0 }
for i, one in ipairs(all) do
  local taken = one.state.free - one.left
  if not write(one, granted, i == 1, refused and strict > 0) then
    return { 9, 0 }
  end
  local limiter, state, score = one.limiter, one.state, one.score
  local reset_in = one.reset_in or to_micros(score + limiter.interval - one.now)
  local first = state.oldest and tonumber(state.oldest_score) -- as in acquire.lua
  local next_in = first and expires_in(state, taken > 0 and math.min(first, score) or first) or 0
  local at = 9 * i - 7
  reply[at + 1], reply[at + 2], reply[at + 3] = to_micros(one.now), limiter.rate, limiter.interval
  reply[at + 4], reply[at + 5], reply[at + 6], reply[at + 7] = math.max(0, one.left), next_in, state.notes, reset_in
  reply[at + 8], reply[at + 9] = one.origin or -2, one.together or 0
end
for group = 1, reply[2] do
  reply[#reply + 1] = granted[group]
  for i = 1, limiters do
    reply[#reply + 1] = waits[i] and waits[i][group] or -1
  end
end
return reply
