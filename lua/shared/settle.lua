-- settle.lua counts expired permits back, and repairs the free permits where they can't be right. It writes nothing: Redis
-- does not undo the first half of a script whose second half fails, so a script reads everything, decides, and then writes
-- (save.lua), first what a full server refuses.
--
-- takes  what config.lua sets; now; rebuild, whether the caller finishes a rebuild
-- sets   stored and counted (stored.lua); free, the permits that are free once the expired records have left; dead, how
--        many of these leave now; more, whether others remain, and nothing is known of what is behind them; oldest, the
--        oldest record that stays, and since, its score as text, or nil; life (ms), the life time to pass on, -1: none

-- How many expired records leave in one call: a million of them must not block Redis.
local BATCH = 2000

--@include stored
local first = call('ZRANGE', records, '0', '0', 'WITHSCORES')
local oldest, since = first[1], first[2]
local edge, dead, back, more = now - interval, 0, 0, false
if oldest and tonumber(since) <= edge then
  --@include permits
  local expired = call('ZRANGEBYSCORE', records, '-inf', edge, 'LIMIT', '0', BATCH)
  dead = #expired
  for i = 1, dead do
    back = back + permits(expired[i])
  end
  first = call('ZRANGE', records, dead, dead, 'WITHSCORES')
  oldest, since = first[1], first[2]
  more = dead == BATCH and oldest and tonumber(since) <= edge
end

local free = counted
if not free or free < 0 or free + back > rate or not oldest or rebuild then
  --@include rebuild
else
  free = free + back
end
if more then
  notes = notes + MORE
end
local life = -1
if keep == 0 then
  life = call('PTTL', name)
end
