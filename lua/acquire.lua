-- acquire.lua grants permits to the requests of one batch. Without a request it counts expired
-- permits back and returns what is free, as Redisson's availablePermits does.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 client_now       ms, up to three decimals; '': this server's clock
--       2 record           of all that is wanted
--       3 wanted           permits in it; '': one record does not hold them, or some request must
--                          get none, or a group keeps some free, or a lease or UP_TO
--       4 flags            ENFORCE, REBUILD, CHECK, WHOLE_SCORES, RECORD_EACH, NEXT, DETAIL, UP_TO,
--                          STRICT_ONLY, APART; GENERAL with one of the next six arguments, without
--                          wanted, without a group, and with REBUILD
--       5 configured_rate  the caller's rate, "rate interval type keep-alive"; '': none
--       with GENERAL:
--       6 granularity      ms; '': none
--       7 lease            up to so many permits more, if every request is granted and much is
--                          free; '': none. The record is then dated at the end of a bucket, in a
--                          quarter of its length or later, and otherwise as without a lease
--       8 lease_bucket     ms: the length of that bucket
--       9 since            ms: the time of an earlier attempt of the same batch or before, whose
--                          records are searched first; '': there was none
--      10 id_count         how many ids the batch has
--      11 recent           the last three bytes of the ids under which the client had grants
--                          before, as numbers between blanks
--       then for each group of requests, in order, the strict ones first; without any, the script
--       only looks:
--         size             permits of a request
--         count            requests; negative if the group is strict. 0: a strict group that keeps
--                          its size free of those behind it
-- reply 1 status           0; 1 to 7 not initialised: config.lua; 8 another rate is configured; 9
--                          it is no longer known what an earlier attempt was granted
--       with status 0:
--       2 rate
--       3 interval         ms
--       4 free             permits afterwards
--       5 next             us until the next permit returns (0: with those granted now, or not
--                          known; a plain grant does not read it without NEXT, or if more than half
--                          of the rate remains free)
--       6 figures          how many follow: none if wanted is granted at client_now, without notes
--                          and without a lease
--       7 notes            base.lua
--       8 now              us
--       9 reset            us until all permits are free (0 unless granted or DETAIL)
--      10 origin           the client of a record (origin_of): another Go client's if one was seen,
--                          else the oldest record's; -2: there is no record, nothing was refused,
--                          or expired records remain
--      11 ahead            permits that were taken for the lease
--      12 together         us until the permits are free, too, that return shortly after those of
--                          the first refused request in a strict group (0: there is none)
--       then, unless wanted was granted, for each group:
--         granted          requests of it (-1: its size exceeds the rate; with UP_TO: permits)
--         wait             us until the permits of its first refused request are free (0: none, or
--                          neither DETAIL nor strict)
--
-- The requests of a strict group wait in a queue: if one is refused, none behind it is granted.
-- Behind the strict groups each group takes what it can.
--
-- The plain grant comes first (plain_read.lua says what it costs). After it, a granularity costs
-- ZRANGEBYSCORE (this client's record of the bucket) and ZREM of it; a refusal ZRANGE of the oldest
-- record and of the records that it adds up or walks, and for waiting callers ZCOUNT and ZRANGE of
-- one more record; a search for an earlier attempt what find_attempt.lua says.

--@include base
--@include flags
local client_now, record, wanted, flags, configured_rate = unpack(ARGV, 1, 5)
wanted, configured_rate = tonumber(wanted), configured_rate ~= '' and configured_rate or nil
local general = find(flags, GENERAL, 1, true)
local config, limiter, state, now -- what the plain grant has read (config.lua, state.lua)

-- The plain grant: one record for all that is wanted. Anything else leaves this block before a
-- permit is taken; a refusal keeps what was read.
if not general then
  local name, value, records, most_expired = KEYS[1], KEYS[2], KEYS[4], MAX_EXPIRED
  local telling = flags ~= '' and find(flags, NEXT, 1, true) and wanted
  now = tonumber(client_now)
  local now_text, whole_text = now and client_now, nil -- for one record, a number costs as much as making a text of it
  --@include plain_read
  config = fields
  if free then
    if new then
      call('HSET', name, unpack(new))
    end
    if wanted <= free and call('ZADD', records, 'NX', score_text, record) == 1 then
      local left, taken = free - wanted, ARGV[3]
      --@include plain_write
      if now_text then
        return { 0, rate, interval, left, next_us or 0, 0 }
      end
      local us, reset_us = now * 1000 - 0.3, (score - cutoff) * 1000 - 0.3 -- as to_micros has it
      return { 0, rate, interval, left, next_us or 0, 6, 0, math.ceil(us), math.ceil(reset_us), -2, 0, 0 }
    end
    oldest = oldest or call('ZRANGE', records, expired_count, expired_count, 'WITHSCORES')
    limiter = {
      name = name,
      value = value,
      records = records,
      rate = rate,
      interval = interval,
      keep_alive = keep_alive,
    }
    state = {
      stored = stored,
      counted = counted,
      free = free,
      expired_count = expired_count,
      expired_permits = expired_permits,
      live_count = live_count,
      oldest = oldest[1],
      oldest_score = oldest[2],
      cutoff = cutoff,
      ttl = ttl,
      notes = 0,
      score = score,
    }
  end
end

--@include record
--@include record_expiry
--@include commit
--@include keep_alive

local granularity, lease, lease_bucket, since, id_count, recent = unpack(ARGV, 6, general and 11 or 5)
granularity, lease = tonumber(granularity), tonumber(lease)
lease_bucket, since = tonumber(lease_bucket), tonumber(since)
local first_group = general and 12 or 6
local prefix = string.sub(record, 1, -5)

-- read_groups returns the groups in the arguments from first on, and how many of them are strict. A
-- group has: size; count, its requests; granted (requests, or permits with UP_TO); wait, the us
-- until the permits of its first refused request are free.
local function read_groups(first)
  local groups, strict = {}, 0
  for at = first, #ARGV, 2 do
    local n, count = #groups + 1, tonumber(ARGV[at + 1])
    groups[n] = { size = tonumber(ARGV[at]), count = math.abs(count), granted = 0, wait = 0 }
    strict = count <= 0 and n or strict
  end
  return groups, strict
end

-- allocate sets what each group is granted of the available permits. It returns how many are left,
-- how many of these are kept free, and whether a request was refused. If the permits are those that
-- an earlier attempt was granted (recovered), a size above the rate may be among them, and none are
-- kept.
local function allocate(groups, strict, available, rate, recovered)
  local partly, queued = find(flags, UP_TO, 1, true), find(flags, STRICT_ONLY, 1, true)
  local left, kept, refused, blocked = available, 0, false, false
  for i, group in ipairs(groups) do
    local size, granted = group.size, 0
    blocked = blocked or queued and i > strict
    if partly then
      granted = math.max(0, math.min(size, left))
      if state.more and not recovered and granted < math.min(size, rate) then
        granted = 0 -- the expired records that remain may hold the rest
      end
      left = left - granted
    elseif group.count == 0 then
      kept = kept + ((blocked or recovered) and 0 or size)
    elseif size > rate and not (recovered and size <= left) then
      granted = -1
    else
      if not blocked then
        granted = math.max(0, math.min(group.count, math.floor((left - kept) / size)))
        left = left - granted * size
      end
      if granted < group.count then
        refused = true
        blocked = blocked or i <= strict
      end
    end
    group.granted = granted
  end
  return left, kept, refused
end

-- Read: the limiter, if the plain grant has not, and what an earlier attempt was granted.
local score, bucketed = state and state.score, false -- of a grant; whether it ends a bucket
local lease_score -- the end of the bucket that a lease would end with; nil: the interval is too short for one
local recovered, redate -- the permits that an earlier attempt was granted; a function that raises its scores
if not state then
  --@include config
  --@include state
  local fault
  limiter, fault = read_config(0, configured_rate, config)
  if not limiter or limiter.mismatch then
    local enforced = find(flags, ENFORCE, 1, true)
    if not limiter or enforced then
      return { enforced and 8 or fault }
    end
  end
  if not ARGV[first_group] and not lease and not limiter.missing then
    limiter.keep_alive = 0 -- looking does not keep a limiter alive
  end
  now = read_clock(client_now)
  score, bucketed = grant_score(now, limiter.interval, granularity, false, find(flags, WHOLE_SCORES, 1, true))
  if lease then
    local ends, is_bucket = grant_score(now, limiter.interval, lease_bucket, true)
    lease_score = is_bucket and ends or nil
  end
  if since then
    --@include grant
    --@include find_attempt
    local whole = wanted and not granularity and record or nil
    call('GET', limiter.value) -- fails before anything is written if the key has another type
    local attempt, share =
      find_attempt(limiter.records, prefix, tonumber(id_count), since, whole, granularity ~= nil, recent)
    if not attempt then
      return { 9 }
    end
    redate = function(to)
      refresh_scores(limiter.records, attempt, to)
    end
    redate(score)
    recovered = #attempt > 0 and share or nil
  end
  state = load_state(limiter, now, find(flags, REBUILD, 1, true), find(flags, CHECK, 1, true))
  state.notes = state.notes + (limiter.mismatch and RATE_MISMATCH or 0)
end
local rate, interval = limiter.rate, limiter.interval

-- Decide.
local left, groups, reset_in, together_in
local refused, strict, ahead, origin = false, 0, 0, -2 -- ahead: permits for a lease
if recovered and recovered == wanted then
  left = state.free
elseif wanted and wanted <= state.free and not recovered then
  left = state.free - wanted
else
  local kept
  groups, strict = read_groups(first_group)
  left, kept, refused = allocate(groups, strict, recovered or state.free, rate, recovered)
  if recovered then
    if left > (lease or 0) then
      return { 9 } -- the groups of an attempt, and its lease, take all that it was granted
    end
    ahead = left
    left = state.free
  end
  if refused and not state.more then
    --@include refusal
    --@include retry_after
    if walk_records(limiter, state) then
      if recovered then
        left = state.free
      else
        left, kept = allocate(groups, strict, state.free, rate)
      end
    end
    local detail = find(flags, DETAIL, 1, true)
    reset_in, together_in, origin = explain_refusal(limiter, state, groups, strict, left, kept, score, detail, prefix)
  end
end
if lease_score and not refused and not recovered and not state.more then
  --@include lease
  ahead = leased(limiter, state, now, left, lease, lease_score)
  left = left - ahead
end
if ahead > 0 then
  score = lease_score or score -- the interval may have become too short for a lease since an earlier attempt
  if recovered then
    redate(score)
  end
end

-- Write.
local taken, records = state.free - left, limiter.records
if limiter.missing then
  call('HSET', limiter.name, unpack(limiter.missing))
end
if taken > 0 then
  --@include grant
  local joined, held = nil, 0
  if bucketed and not find(flags, APART, 1, true) then
    joined, held = find_own_record(records, score, prefix, taken)
  end
  local score_text = score == now and client_now ~= '' and client_now or score
  if groups and find(flags, RECORD_EACH, 1, true) and not find(flags, UP_TO, 1, true) then
    for _, group in ipairs(groups) do
      prefix = add_records(records, prefix, group.granted, group.size, score)
    end
  elseif joined or taken ~= wanted or call('ZADD', records, 'NX', score_text, record) == 0 then
    if not joined and taken == wanted and client_now ~= '' and tonumber(call('ZSCORE', records, record)) >= score then
      return { 9 } -- a later attempt of this batch was served before, and nothing waits for this one any more
    end
    add_record(records, granularity and share_prefix(prefix, taken) or prefix, taken + held, score)
    if joined then
      call('ZREM', records, joined)
    end
  end
end
commit(limiter, state, left)
-- Behind the strict groups, the queue goes on: for example with the next instalment.
apply_ttl(limiter, state.ttl, now, (refused or find(flags, STRICT_ONLY, 1, true)) and strict > 0)

-- Reply.
local first = state.oldest and tonumber(state.oldest_score) -- a client's clock may be behind the one that dated it
local next_in = first and expires_in(state, taken > 0 and math.min(first, score) or first) or 0
if state.notes == 0 and not groups and not lease and client_now ~= '' then
  return { 0, rate, interval, left, next_in, 0 }
end
if taken > 0 or recovered then
  reset_in = reset_in or to_micros(score + interval - now)
end
local listed = groups or {}
local reply = {
  0, rate, interval, math.max(0, left), next_in, 6 + 2 * #listed, state.notes, to_micros(now), reset_in or 0,
}
reply[10], reply[11], reply[12] = origin, ahead, together_in or 0
for i, group in ipairs(listed) do
  reply[11 + 2 * i], reply[12 + 2 * i] = group.granted, group.wait
end
return reply
