-- refusal.lua: whether a refusal is right, when the permits will be free, and who has them.
local MAX_WALKED = 512 -- records that a refusal walks to find a time
local KEEP_ALIVE = 8192 -- a note (base.lua): the limiter has a keep-alive
-- permits return together within so many ms, but at most that part of the interval
local TOGETHER, TOGETHER_PART = 5, 200

-- walk_records prepares a state for the other functions: it sets live_count and walked, the oldest
-- live records, and notes whether the limiter has a keep-alive. It adds the records up, raises the
-- free permits if some were lost, and returns whether it did. It does not lower them: after a
-- release by Redisson there are more permits than the rate on purpose.
local function walk_records(limiter, state)
  state.notes = state.notes + (limiter.keep_alive > 0 and KEEP_ALIVE or 0)
  state.live_count = state.live_count or call('ZCARD', limiter.records) - state.expired_count
  state.walked = { state.oldest }
  if state.live_count > MAX_ADDED then
    return false
  elseif state.live_count > 1 then
    state.walked = call('ZRANGE', limiter.records, state.expired_count, state.expired_count + MAX_ADDED - 1)
  end
  local sum = sum_permits(state.walked)
  if state.free + sum >= limiter.rate then
    return false
  end
  state.free, state.notes = limiter.rate - sum, state.notes + LOW
  return true
end

-- rank_expires_in is the same for the live record of a rank, counted from 0. It reads one score:
-- scores cost Redis more than members, and few are needed.
local function rank_expires_in(limiter, state, rank)
  if rank == 0 then
    return expires_in(state, state.oldest_score)
  end
  rank = state.expired_count + rank
  return expires_in(state, call('ZRANGE', limiter.records, rank, rank, 'WITHSCORES')[2])
end

-- all_free_in returns in how many µs the permits of the first count live records will be free, and
-- those that are taken now, with a score, if no client takes any.
local function all_free_in(limiter, state, count, taken, score)
  local live = count > 0 and rank_expires_in(limiter, state, count - 1) or 0
  return math.max(live, taken > 0 and expires_in(state, score) or 0)
end

-- free_in returns in how many µs n permits will be free, if no other client takes any. free: how
-- many are free now; taken: how many are granted now, with a score. With more records than it
-- walks, it returns the time of the last that it walked.
local function free_in(limiter, state, n, free, taken, score)
  local have, walked = free, state.walked
  -- The number of live records that expire before what is taken.
  local before = taken > 0 and call('ZCOUNT', limiter.records, '-inf', score) - state.expired_count
  for i = 1, #walked do
    if before == i - 1 then
      have = have + taken
      if have >= n then
        return expires_in(state, score)
      end
    end
    have = have + permits_of(walked[i])
    if have >= n then
      return rank_expires_in(limiter, state, i - 1)
    end
  end
  if state.live_count <= #walked then
    return all_free_in(limiter, state, state.live_count, 1, score) -- what is kept free is taken before
  elseif #walked > 1 then
    return rank_expires_in(limiter, state, #walked - 1)
  end
  state.walked = call('ZRANGE', limiter.records, state.expired_count, state.expired_count + MAX_WALKED - 1)
  return free_in(limiter, state, n, free, taken, score)
end

-- together_free_in returns in how many µs the permits will be free, too, that return shortly after
-- those that do in a given time. taken are granted now, with a score.
local function together_free_in(limiter, state, us, taken, score)
  local until_score = state.cutoff + us / 1000 + math.min(TOGETHER, limiter.interval / TOGETHER_PART)
  local count = call('ZCOUNT', limiter.records, '-inf', until_score) - state.expired_count
  return math.max(us, all_free_in(limiter, state, count, score <= until_score and taken or 0, score))
end

-- find_writers looks for records of other clients among those that walk_records has read. It
-- returns the origin of one that another Go client wrote, else that of the oldest record; -2: there
-- is none. Which Go client it returns depends on the id of the batch, so that each of them is
-- returned sooner or later. It notes in the state whether there is a record that no Go client
-- wrote.
local function find_writers(state, prefix)
  if not state.oldest then
    return -2
  end
  local own, members, others, foreign = client_prefix(prefix), state.walked, {}, false
  for i = 1, #members do
    if string.sub(members[i], 1, #own) ~= own then
      local origin = origin_of(members[i])
      local head = origin
      while head >= 65536 do
        head = math.floor(head / 256)
      end
      if head == 18287 then -- 'Go'
        others[#others + 1] = origin
      else
        foreign = true
      end
    end
  end
  state.notes = state.notes + (foreign and FOREIGN_WRITER or 0)
  return others[1] and others[1 + string.byte(prefix, -1) % #others] or origin_of(state.oldest)
end
