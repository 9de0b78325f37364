-- delete.lua removes a limiter: its configuration, its state, and the client's state. Redis frees
-- the memory in the background, so a million records block no other client.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  none
-- reply 1 removed  how many keys
--       then the number of each key that stays because another program uses it

--@include base
--@include config
local reply = { 0 }
for i = 1, 5 do
  if is_foreign(i) then
    reply[#reply + 1] = i
  else
    reply[1] = reply[1] + call('UNLINK', KEYS[i])
  end
end
return reply
