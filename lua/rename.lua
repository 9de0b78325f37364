-- rename.lua gives a limiter another name, with all its state. What had the new name is gone.
--
-- KEYS  1 to 5 config, value, client value, permits, client permits; 6 to 10 the same under the new name
-- ARGV  1 flags: n only where no limiter has the new name
-- reply 1 if it was renamed, 0 if the new name is taken, -1 if there is no limiter

if redis.call('EXISTS', KEYS[1]) == 0 then
  return { -1 }
end
if ARGV[1] == 'n' and redis.call('EXISTS', KEYS[6]) == 1 then
  return { 0 }
end
if KEYS[1] == KEYS[6] then
  return { 1 }
end
for i = 1, 5 do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    redis.call('RENAME', KEYS[i], KEYS[i + 5])
  else
    redis.call('DEL', KEYS[i + 5])
  end
end
return { 1 }
