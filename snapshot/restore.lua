-- restore.lua renames prepared keys to the keys of a limiter: all of them or none. It uses no
-- command that a server at its memory limit refuses. A key of another Redis type belongs to another
-- program: then the script changes nothing.
--
-- KEYS  the limiter's keys (configuration, then value and permits of each state), then the prepared
--       keys
-- ARGV  1 number of the limiter's keys, 2 flags: r replace existing keys, then two for each
--       prepared key: index of the limiter's key that it becomes, its TTL (ms; 0: none)
-- reply 0, or the index of an existing key, or -1 if a prepared key no longer exists, or -1 - i if
--       another program uses key i

local own = tonumber(ARGV[1])
for i = 1, own do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= (i == 1 and 'hash' or i % 2 == 0 and 'string' or 'zset') then
    return -1 - i
  end
end
if ARGV[2] ~= 'r' then
  for i = 1, own do
    if redis.call('EXISTS', KEYS[i]) == 1 then
      return i
    end
  end
end
for i = own + 1, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    return -1
  end
end

for i = 1, own do
  redis.call('UNLINK', KEYS[i])
end
for i = own + 1, #KEYS do
  local at = 3 + (i - own - 1) * 2
  local key, life = KEYS[tonumber(ARGV[at])], ARGV[at + 1]
  redis.call('RENAME', KEYS[i], key)
  if life == '0' then
    redis.call('PERSIST', key)
  else
    redis.call('PEXPIRE', key, life)
  end
end
return 0
