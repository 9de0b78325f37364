-- fixed_window.lua counts permits in a window that begins with the first permit.
--
-- KEYS  1 count
-- ARGV  1 limit, 2 window (ms), 3 permits
-- reply 1 permits counted now, 2 count, 3 ms until the window ends

local limit, window, permits = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = redis.call('GET', KEYS[1])
local life = redis.call('PTTL', KEYS[1])
local endless = life == -1 or life > TIMES * window
local count = int(stored)
if not count or count < 0 then
  local left = not endless and life > 0 and life or window
  permits = taken(permits, limit, MOST)
  redis.call('SET', KEYS[1], whole(permits), 'PX', whole(left))
  return { permits, permits, left }
end

permits = taken(permits, limit - count, MOST - count)
if permits > 0 then
  count = redis.call('INCRBY', KEYS[1], whole(permits))
end
if endless then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  life = window
end
return { permits, count, life }
