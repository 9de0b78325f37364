-- allowall.lua asks several limiters for the requests of one batch: of each request all limiters grant their part, or none does.
--
-- KEYS  five a limiter: config, value, client value, permits, client permits
-- ARGV  1 counts           requests of each group (a number a group)
--       2 client_now       ms, up to three decimals
--       then four a limiter:
--         sizes            permits of each group (a number a group)
--         record           of all that is wanted; if one cannot hold it, only its prefix counts
--         configured_rate  the caller's rate, "rate interval type keep-alive"; '': none
--         flags            ENFORCE, REBUILD, CHECK, WHOLE_SCORES, RECORD_EACH, SERVER_TIME, and a number: the granularity in ms
--       then, to search the records of an earlier attempt of the same batch first, two a limiter:
--         since            ms: the time of that attempt or an earlier one
--         id_count         how many ids the batch has
-- reply 1 status           0; else as in acquire.lua, and then
--       2 failed           the number of the limiter that has it, from 0
--       with status 0, seven a limiter:
--         now              us
--         rate
--         interval         ms
--         free             permits afterwards
--         next             us until the next permit returns (0: as in acquire.lua)
--         notes            base.lua
--         reset            us until all permits are free
--       no more if all is granted; else for each group:
--         granted          requests of it (-1: more than the rate of limiter 0; -2: of limiter 1, ...)
--         waits            one a limiter: us until it has the permits of the first refused request (0: it has them; -1: not
--                          known, so ask again)

--@include base
--@include flags
local limiters = #KEYS / 5
local client_now = ARGV[2]

-- A batch of one group is granted here as a whole, by plain grants. Otherwise this block ends before a permit is taken, and
-- the state is read again.
local count = not ARGV[4 * limiters + 3] and tonumber(ARGV[1])
local plain, read, most_expired = count, {}, MAX_EXPIRED -- read[i]: of limiter i, from 0
for i = 0, count and limiters - 1 or -1 do
  local name, value, records, at = KEYS[5 * i + 1], KEYS[5 * i + 2], KEYS[5 * i + 4], 4 * i + 2
  local wanted, flags = count * tonumber(ARGV[at + 1]), ARGV[at + 4]
  if find(flags, '[br%d]') or wanted > MAX_RECORD then
    plain = nil
    break
  end
  local now_text, whole_text = not find(flags, SERVER_TIME, 1, true) and client_now, nil
  local now = now_text and tonumber(now_text)
  local configured_rate = ARGV[at + 3] ~= '' and ARGV[at + 3]
  local telling = wanted
  --@include plain_read
  if not free or wanted > free then
    plain = nil
    break
  end
  local left = free - wanted
  read[i] =
    { rate, interval, new, now, score, score_text, wanted, left, counted, expired_count, expired_permits, ttl, next_us }
end
if plain then
  -- Room for two limiters: growing takes time.
  local reply = { 0, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }
  for i = 0, limiters - 1 do
    local rate, interval, new, now, score, score_text, taken, left, counted, expired_count, expired_permits, ttl, next_us =
      unpack(read[i])
    local name, value, records, record, at = KEYS[5 * i + 1], KEYS[5 * i + 2], KEYS[5 * i + 4], ARGV[4 * i + 4], 7 * i + 1
    if new then
      call('HSET', name, 'rate', string.format('%.0f', rate), 'interval', string.format('%.0f', interval), 'type', '0')
    end
    if call('ZADD', records, 'NX', score_text, record) == 0 then
      if i == 0 and tonumber(call('ZSCORE', records, record)) >= score then
        return { 9, 0 } -- as in acquire.lua, a later attempt of this batch was served before; nothing is written yet
      end
      --@include record
      --@include grant
      add_record(records, next_prefix(string.sub(record, 1, -5)), taken, score)
    end
    taken = string.format('%.0f', taken)
    --@include plain_write
    -- Times as to_micros has them.
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4], reply[at + 5], reply[at + 6], reply[at + 7] =
      math.ceil(now * 1000 - 0.3), rate, interval, left, next_us or 0, 0, math.ceil((score + interval - now) * 1000 - 0.3)
  end
  return reply
end

--@include record
--@include expiry
--@include config
--@include state
--@include commit

-- parse_numbers returns the numbers in a text.
local function parse_numbers(text)
  local numbers = {}
  for number in string.gmatch(text, '%d+') do
    numbers[#numbers + 1] = tonumber(number)
  end
  return numbers
end

-- read_request returns what is asked of a limiter, numbered from 0. total is the sum of all requests.
local function read_request(number, counts)
  local at = 4 * number + 2
  local flags = ARGV[at + 4]
  local granularity = string.match(flags, '%d+')
  local sizes, total = parse_numbers(ARGV[at + 1]), 0
  for i = 1, #sizes do
    total = total + sizes[i] * counts[i]
  end
  return {
    sizes = sizes,
    total = total,
    prefix = string.sub(ARGV[at + 2], 1, -5),
    record = ARGV[at + 2],
    configured_rate = ARGV[at + 3] ~= '' and ARGV[at + 3] or nil,
    flags = flags,
    client_now = find(flags, SERVER_TIME, 1, true) and '' or client_now,
    granularity = granularity and tonumber(granularity),
  }
end

local function score_of(request, limiter, now)
  return grant_score(now, limiter.interval, request.granularity, nil, find(request.flags, WHOLE_SCORES, 1, true))
end

-- read_limiter returns the configuration and the state of a limiter, numbered from 0; or nil and a status.
local function read_limiter(number, counts, recovered)
  local request = read_request(number, counts)
  local flags = request.flags
  local limiter, fault = read_config(5 * number, request.configured_rate)
  local enforced = find(flags, ENFORCE, 1, true)
  if not limiter or enforced and limiter.mismatch and not recovered then
    return nil, enforced and 8 or fault
  end
  local now = read_clock(request.client_now)
  local state = load_state(limiter, now, find(flags, REBUILD, 1, true), find(flags, CHECK, 1, true))
  state.notes = state.notes + (limiter.mismatch and RATE_MISMATCH or 0)
  local score, bucketed = score_of(request, limiter, now)
  return { request = request, limiter = limiter, state = state, now = now, score = score, bucketed = bucketed }
end

-- allocate returns what is granted of each group, whether a request was refused, and whether one is for more than a rate. It
-- sets left of each limiter: the rest of its free permits, or of those in available, which an earlier attempt was granted; a
-- size above the rate may be among these.
local function allocate(all, counts, available)
  local granted, refused, exceeded = {}, false, false
  for i, one in ipairs(all) do
    one.left = available and available[i] or one.state.free
  end
  for group, wanted in ipairs(counts) do
    local n, exceeds = wanted, nil
    for i, one in ipairs(all) do
      local size = one.request.sizes[group]
      if size > one.limiter.rate and not (available and size <= one.left) then
        exceeds = exceeds or i
      end
      n = math.max(0, math.min(n, math.floor(one.left / size)))
    end
    if exceeds then
      granted[group], exceeded = -exceeds, true
    else
      granted[group], refused = n, refused or n < wanted
      for _, one in ipairs(all) do
        one.left = one.left - n * one.request.sizes[group]
      end
    end
  end
  return granted, refused, exceeded
end

local counts = parse_numbers(ARGV[1])
local available -- permits of each limiter that an earlier attempt was granted
if ARGV[4 * limiters + 3] then
  --@include grant
  --@include recover
  local attempts, shares, missing = {}, {}, 0
  for i = 0, limiters - 1 do
    local request = read_request(i, counts)
    local limiter = read_config(5 * i, request.configured_rate)
    if not limiter then
      missing = missing + 1 -- the limiter was deleted
    else
      local since, id_count = tonumber(ARGV[4 * limiters + 3 + 2 * i]), tonumber(ARGV[4 * limiters + 4 + 2 * i])
      local score = score_of(request, limiter, read_clock(request.client_now))
      local shared = request.granularity ~= nil
      local whole = id_count == 1 and not shared and request.record or nil
      call('GET', limiter.value) -- fails before anything is written if the key has another type
      local attempt, share = find_attempt(limiter.records, request.prefix, id_count, since, whole, shared, '')
      if not attempt then
        return { 9, i }
      end
      missing = missing + (#attempt > 0 and 0 or 1)
      attempts[i + 1], shares[i + 1] = { limiter.records, attempt, score }, share
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

-- Decide.
local all = {}
for i = 0, limiters - 1 do
  local one, status = read_limiter(i, counts, available)
  if not one then
    return { status, i }
  end
  all[i + 1] = one
end
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
    for group, size in ipairs(one.request.sizes) do
      if size <= one.left then
        waits[i][group] = 0
      elseif granted[group] >= 0 and granted[group] < counts[group] and not state.more then
        waits[i][group] = free_in(one.limiter, state, size, one.left, taken, one.score)
      end
    end
  end
end

-- Write.
local reply = { 0 }
for _, one in ipairs(all) do
  local request, limiter, state = one.request, one.limiter, one.state
  local prefix, records, score = request.prefix, limiter.records, one.score
  local left = one.left
  local taken = state.free - left
  if limiter.missing then
    call('HSET', limiter.name, unpack(limiter.missing))
  end
  if taken > 0 then
    --@include grant
    if find(request.flags, RECORD_EACH, 1, true) then
      for group, size in ipairs(request.sizes) do
        prefix = add_records(records, prefix, granted[group], size, score)
      end
    else
      local joined, held = nil, 0
      if one.bucketed then
        joined, held = find_own_record(records, score, prefix, taken)
      end
      add_record(records, request.granularity and share_prefix(prefix, taken) or prefix, taken + held, score)
      if joined then
        call('ZREM', records, joined)
      end
    end
  end
  commit(limiter, state, left)
  apply_ttl(limiter, state.ttl, one.now)
  local reset_in = one.reset_in or to_micros(score + limiter.interval - one.now)
  local first = state.oldest and tonumber(state.oldest_score) -- as in acquire.lua
  local next_in = first and expires_in(state, taken > 0 and math.min(first, score) or first) or 0
  local figures =
    { to_micros(one.now), limiter.rate, limiter.interval, math.max(0, left), next_in, state.notes, reset_in }
  for _, figure in ipairs(figures) do
    reply[#reply + 1] = figure
  end
end
if refused or exceeded then
  for group, n in ipairs(granted) do
    reply[#reply + 1] = n
    for i = 1, limiters do
      reply[#reply + 1] = waits[i] and waits[i][group] or -1
    end
  end
end
return reply
