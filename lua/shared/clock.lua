-- clock.lua tells the time.
--
-- takes  asked, the caller's time in ms as text; '' for this server's
-- sets   now (ms)
local now = tonumber(asked)
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
