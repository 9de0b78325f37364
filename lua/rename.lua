-- rename.lua gives a limiter another name, with all its state. What had the new name is removed.
-- Nothing is done if another program uses one of the keys.
--
-- KEYS  1 to 5 config, value, client value, permits, client permits; 6 to 10 the same under the new
--       name
-- ARGV  1 flags   n only if no limiter has the new name
-- reply 1 result  1: it was renamed; 0: the new name is taken; -1: there is no limiter; -1 - i:
--                 another program uses KEYS[i]

--@include base
--@include config
local only_new = ARGV[1] == 'n'
if call('EXISTS', KEYS[1]) == 0 then
  return { -1 }
end
if only_new and call('EXISTS', KEYS[6]) == 1 then
  return { 0 }
end
for i = 1, 10 do
  if is_foreign(i) then
    return { -1 - i }
  end
end
if KEYS[1] == KEYS[6] then
  return { 1 }
end
for i = 1, 5 do
  call('UNLINK', KEYS[i + 5]) -- RENAME would free it at once, and block
  if call('EXISTS', KEYS[i]) == 1 then
    call('RENAME', KEYS[i], KEYS[i + 5])
  end
end
return { 1 }
