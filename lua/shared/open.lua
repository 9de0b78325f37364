-- open.lua reads a limiter, counts expired permits back, and repairs the free permits where they can't be right. It writes
-- nothing: Redis does not undo the first half of a script whose second half fails, so a script reads everything, decides,
-- and then writes (close.lua), first what a full server refuses.
--
-- It needs numbers, permits, clock and config.
--
-- limiter.notes sums up what an answer says beside its figures; Go has the words (script.go):
--   1 to 64     why the free permits were rebuilt: they were missing, no number, negative, above the rate, more than the
--               rate with the expired ones, not the rate without a record, less than the rate with the records
--   256         expired records remain, more than leave in one call
--   512         and the free permits are to be rebuilt once these are gone: the caller says so when it asks again
--   1024        the rate in force is another than the caller's
--   2048        a record was met that is no Go client's (acquire.lua, when a group in line is refused)
local MORE, DIFFERS = 256, 1024

-- How many expired records leave in one call, and how many records are read at a time where all of them count.
local BATCH, PAGE = 2000, 5000

-- settle reads the state of a limiter at a time: the permits that are free once the expired records have left, how many
-- of these leave now, and the oldest one that stays.
local function settle(limiter, now, rebuild)
  local stored = redis.call('GET', limiter.value)
  local oldest = redis.call('ZRANGE', limiter.records, '0', '0', 'WITHSCORES')
  local edge, dead, back, more = now - limiter.interval, 0, 0, false
  if oldest[1] and score(oldest[2]) <= edge then
    local expired = redis.call('ZRANGEBYSCORE', limiter.records, '-inf', edge, 'LIMIT', 0, BATCH)
    dead = #expired
    for i = 1, dead do
      back = back + permits(expired[i])
    end
    oldest = redis.call('ZRANGE', limiter.records, dead, dead, 'WITHSCORES')
    more = dead == BATCH and oldest[1] and score(oldest[2]) <= edge
  end

  local free = plain(stored)
  limiter.stored = free
  if not free or free < 0 or free + back > limiter.rate or not oldest[1] or rebuild then
    --@include rebuild
    free, more = rebuilt(limiter, stored, free, dead, back, oldest[1], more, rebuild)
  else
    free = free + back
  end
  if more then
    limiter.notes = limiter.notes + MORE
  end
  limiter.now, limiter.free, limiter.dead, limiter.more = now, free, dead, more
  limiter.oldest, limiter.since = oldest[1], oldest[2]
  if limiter.keep == 0 then
    limiter.life = redis.call('PTTL', limiter.name)
  end
end
