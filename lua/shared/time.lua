-- time.lua: the clock.

-- read_clock returns the time in ms, exact to the µs: the client's, given as text, or this server's if that is ''.
local function read_clock(client_now)
  if client_now ~= '' then
    return tonumber(client_now)
  end
  local time = call('TIME')
  return (tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000
end

-- to_micros converts ms to whole µs, rounded up. A double holds a time of today to a quarter of a µs, so a smaller fraction
-- is an error of rounding.
local function to_micros(ms)
  return math.ceil(ms * 1000 - 0.3)
end
