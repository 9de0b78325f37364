-- restore.lua makes prepared keys the keys of a limiter: all of them or none. No command here is one that a full server
-- refuses.
--
-- KEYS  the limiter's keys, then those that are prepared
-- ARGV  1 how many keys the limiter has, 2 flags: r replace what is there,
--       then two for each prepared key: which of the limiter's keys it becomes, its life time (ms; 0: none)
-- reply 0, or the number of a key that is there already, or -1 if what was prepared is gone

local own = tonumber(ARGV[1])
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
