-- cursor_window.lua counts permits in a window that begins at a cursor.
--
-- KEYS  1 hash: cursor (ms), currentRate
-- ARGV  1 limit, 2 interval (ms), 3 now (ms), 4 permits
-- reply 1 permits counted now, 2 permits in the window, 3 ms until the window ends

local limit, interval, now, permits = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local state = redis.call('HMGET', KEYS[1], 'cursor', 'currentRate')
local cursor, used = int(state[1]), int(state[2])
if not cursor or cursor > now + interval then
  cursor, used = now - now % interval, 0
elseif now >= cursor + interval then
  cursor, used = now - (now - cursor) % interval, 0
elseif not used or used < 0 then
  used = 0
end

permits = taken(permits, limit - used, MOST - used)
if permits > 0 then
  used = used + permits
  redis.call('HSET', KEYS[1], 'cursor', whole(cursor), 'currentRate', whole(used))
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return { permits, used, cursor + interval - now }
