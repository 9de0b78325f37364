-- clock.lua: the time in ms, the caller's or, where the caller sends none (''), this server's.
local function clock(now)
  if now ~= '' then
    return tonumber(now)
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
