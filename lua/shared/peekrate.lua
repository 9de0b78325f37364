-- peekrate.lua stands between peek.lua and acquire.lua. That then decides as if the caller's rate
-- had just been set in the place of another one, with the state kept (setrate.lua).
--
-- KEYS  those of acquire.lua
-- ARGV  those of acquire.lua
-- reply that of acquire.lua

do
  local rate, interval, kind, keep_alive = string.match(ARGV[5], '^(%d+) (%d+) (%d+) (%d+)$')
  local call = redis.call
  local before = call('HMGET', KEYS[1], 'type')[1]
  if before and before ~= kind then
    call('UNLINK', unpack(KEYS, 2))
  end
  redis.call = function(command, ...)
    if command == 'HMGET' then
      return { rate, interval, kind, keep_alive ~= '0' and keep_alive }
    elseif command == 'GET' then
      return false -- what is stored is free under another rate: the records tell how many permits are
    end
    return call(command, ...)
  end
end

