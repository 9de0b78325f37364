-- two_counters.lua estimates the permits of the last interval from the counts of the current and
-- the previous window.
--
-- KEYS  1 hash: window (number), current, previous (permits granted in it and in the one before),
--       lasts (ms from the beginning of each to its last grant, after the window and current that
--       they belong to)
-- ARGV  1 limit, 2 interval (ms), 3 now (ms), 4 permits
-- reply 1 estimate, rounded up, or -1 if over the limit, 2 estimate, rounded up, 3 ms until the
--       wanted permits are free, 4 ms until all permits are free, 5 ms until the estimate is lower
--       by one

local limit, interval, now, permits = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local state = redis.call('HMGET', KEYS[1], 'window', 'current', 'previous', 'lasts')

-- last returns the time of a last grant, in ms from the beginning of its window. If it is not
-- known, it is the end of the window.
local function last(text)
  local ms = int(text)
  return ms and ms >= 0 and math.min(ms, interval) or interval
end

local window, current, previous = int(state[1]), int(state[2]), int(state[3])
local of_window, of_current, current_last, previous_last = string.match(state[4] or '', '^(%S+) (%S+) (%d+) (%d+)$')
if of_window ~= state[1] or of_current ~= state[2] then -- a client that does not know lasts has granted permits since
  current_last, previous_last = nil, nil
end
current_last, previous_last = last(current_last), last(previous_last)
local number = math.floor(now / interval)
current = current and math.max(0, current) or 0
previous = previous and math.max(0, previous) or 0
if not window or window > number + 1 or window < number - 1 then
  window, current, previous = number, 0, 0
elseif window == number - 1 then
  previous = current -- a statement of its own: the embedded server's Lua runs a multiple assignment from left to right
  previous_last = current_last
  window, current = number, 0
end
local passed = math.max(0, now - window * interval)
if previous_last <= passed then
  previous = 0 -- an interval has passed since its last grant
end

-- Both sides are multiplied by the interval, so that the comparison uses whole numbers.
local over = previous * (interval - passed) + (current + permits) * interval > limit * interval
local wait = 0
if not over then
  current_last = math.max(current > 0 and current_last or 0, passed)
  current = current + permits
  redis.call('HSET', KEYS[1], 'window', whole(window), 'current', whole(current), 'previous', whole(previous), 'lasts',
    table.concat({ whole(window), whole(current), whole(current_last), whole(previous_last) }, ' '))
  redis.call('PEXPIRE', KEYS[1], whole(2 * interval))
else
  -- left returns the time (ms) in a window at which the weighted count of the window before it no
  -- longer exceeds room: at the latest an interval after the last grant of that window.
  local function left(count, last_grant, room)
    return count > room and math.min(last_grant, math.ceil(interval - room * interval / count)) or 0
  end
  if current + permits <= limit then
    wait = left(previous, previous_last, limit - current - permits) - passed
  else
    wait = interval + left(current, current_last, limit - permits) - passed
  end
  wait = wait + window * interval + passed - now
end
local estimate = current + math.ceil(previous * (interval - passed) / interval)
local weighted, lower = estimate - current, 0
if weighted > 0 then
  lower = math.min(previous_last, math.ceil(interval - (weighted - 1) * interval / previous))
elseif current > 0 then
  lower = interval + math.min(current_last, math.ceil(interval / current))
end
local reset = current > 0 and interval + current_last or previous_last
local all_free, first_free = window * interval + reset - now, window * interval + lower - now
return { over and -1 or estimate, estimate, math.max(1, wait), math.max(0, all_free), math.max(0, first_free) }
