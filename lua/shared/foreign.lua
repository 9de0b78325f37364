-- foreign.lua: keys of other programs under the names of a limiter's keys.

-- is_foreign tells whether KEYS[i] belongs to another program: it has not the Redis type that a limiter gives it. Such a key
-- is neither removed nor changed.
local function is_foreign(i)
  local found = call('TYPE', KEYS[i]).ok
  return found ~= 'none' and found ~= ({ 'hash', 'string', 'string', 'zset', 'zset' })[(i - 1) % 5 + 1]
end
