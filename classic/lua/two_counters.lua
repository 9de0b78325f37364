-- two_counters.lua estimates the permits of the last interval from the counts of the current and
-- the previous window.
--
-- KEYS  1 hash: window (number), current, previous (permits granted in it and in the one before),
--       lasts (ms from the beginning of each to its last grant, after the window and current that
--       they belong to)
-- ARGV  1 limit, 2 interval (ms), 3 now (ms), 4 permits
-- reply 1 permits counted now, 2 estimate, rounded up, 3 ms until the wanted permits are free, 4 ms
--       until all permits are free, 5 ms until one permit more is free

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
local count = taken(permits, over and 0 or permits, MOST - current)
if count > 0 then
  current_last = math.max(current > 0 and current_last or 0, passed)
  current = current + count
  redis.call('HSET', KEYS[1], 'window', whole(window), 'current', whole(current), 'previous', whole(previous), 'lasts',
    table.concat({ whole(window), whole(current), whole(current_last), whole(previous_last) }, ' '))
  redis.call('PEXPIRE', KEYS[1], whole(2 * interval))
end

-- left returns the time (ms) in a window at which the weighted count of the window before it no
-- longer exceeds room: at the latest an interval after the last grant of that window.
local function left(sum, last_grant, room)
  return sum > room and math.min(last_grant, math.ceil(interval - room * interval / sum)) or 0
end

-- after returns the ms until so many permits are free.
local function after(wanted)
  local at
  if current + wanted <= limit then
    at = left(previous, previous_last, limit - current - wanted)
  else
    at = interval + left(current, current_last, limit - wanted)
  end
  return math.max(0, window * interval + at - now)
end
local estimate = current + math.ceil(previous * (interval - passed) / interval)
local reset = current > 0 and interval + current_last or previous_last
local all = math.max(0, window * interval + reset - now)
return { count, estimate, math.max(1, after(permits)), all, after(math.max(0, limit - estimate) + 1) }
