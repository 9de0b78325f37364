-- rename.lua gives a limiter another name, with all its state. What had the new name is removed. Nothing is done if another
-- program uses one of the keys.
--
-- KEYS  1 to 5 config, value, client value, permits, client permits; 6 to 10 the same under the new name
-- ARGV  1 flags: n only if no limiter has the new name
-- reply 1 if it was renamed, 0 if the new name is taken, -1 if there is no limiter; -1 - i if another program uses KEYS[i]

-- base.lua: constants. It defines no function: each costs Redis as much as a tenth of a call to it.
local call, find, tonumber = redis.call, string.find, tonumber
local MAX_PERMITS = 1e15 -- scripts count with no more permits than this
local MAX_EXPIRED = 2000 -- records that leave in one call: a million of them must not block Redis
local MAX_RECORD = 4294967295 -- permits in one record
local FRACTIONS_BELOW = 200 -- ms: shorter intervals have scores exact to the µs

-- Notes: a reply has the sum of those that apply. internal/protocol has the same list.
-- The free permits were repaired, because they were: missing; not a number; negative; above the rate; above the rate
-- together with the expired permits; not the rate although there is no record; less than the rate together with the
-- records; more than it.
local MISSING, GARBLED, NEGATIVE, ABOVE, DRIFTED, EMPTY, LOW, HIGH = 1, 2, 4, 8, 16, 32, 64, 128
local MORE = 256 -- expired records remain: one call removes a limited number
local REBUILD_PENDING = 512 -- the free permits must be rebuilt once these are gone; the next request says so by a flag
local RATE_MISMATCH = 1024 -- the configured rate is not the caller's
local FOREIGN_WRITER = 2048 -- a record of a client other than this library was seen, after a refusal in the queue
local MANY = 4096 -- there are too many live records for one call to add up: recount.lua does that
-- foreign.lua: keys of other programs under the names of a limiter's keys.

-- is_foreign tells whether KEYS[i] belongs to another program: it has not the Redis type that a limiter gives it. Such a key
-- is neither removed nor changed.
local function is_foreign(i)
  local found = call('TYPE', KEYS[i]).ok
  return found ~= 'none' and found ~= ({ 'hash', 'string', 'string', 'zset', 'zset' })[(i - 1) % 5 + 1]
end
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
