-- acquiremany.lua grants permits to the batches of several limiters, each for itself, by plain grants (plain.lua). What is no
-- plain grant has no effect, and the client asks for it by acquire.lua. Nor has an error any effect.
--
-- KEYS  five a limiter: config, value, client value, permits, client permits
-- ARGV  1 now (ms, up to three decimals), then four a limiter: permits, the record that holds them, the caller's rate ("rate
--       interval type keep-alive"; '': none), flags (of plain.lua)
-- reply four a limiter: status (0; 10 no plain grant), rate, interval (ms), permits free afterwards

-- base.lua: constants. It defines no function: each definition costs a tenth of a call of Redis.
local call, find, tonumber = redis.call, string.find, tonumber
local MAX_PERMITS = 1e15 -- scripts count with no more permits than this
local MAX_EXPIRED = 2000 -- records that leave in one call: a million of them must not block Redis
local MAX_RECORD = 4294967295 -- permits in one record
local FRACTIONS_BELOW = 200 -- ms: shorter intervals have scores exact to the µs

-- Notes: a reply has the sum of those that apply. internal/protocol has the same list.
-- The free permits were repaired, because they were: missing; not a number; negative; above the rate; with the expired
-- permits above the rate; not the rate although there is no record; with the records below the rate. HIGH: with the records
-- they were above the rate, and the records were repaired.
local MISSING, GARBLED, NEGATIVE, ABOVE, DRIFTED, EMPTY, LOW, HIGH = 1, 2, 4, 8, 16, 32, 64, 128
local MORE = 256 -- expired records remain: one call removes a limited number
local REBUILD_PENDING = 512 -- the free permits must be rebuilt once these are gone; the next request says so by a flag
local RATE_MISMATCH = 1024 -- the configured rate is not the caller's
local FOREIGN_WRITER = 2048 -- a record of a client other than this library was seen, after a refusal in the queue
local MANY = 4096 -- there are too many live records for one call to add up: recount.lua does that
-- plain.lua: plain grants of several limiters in one call: all are read first, then written, so that an error of a read has no
-- effect. A plain grant is one record that joins no other, in a limiter of type '0' without keep-alive whose state needs no
-- repair. acquire.lua has the same steps inline, for one limiter.
local RATE, INTERVAL, FREE, COUNTED, EXPIRED, TTL, SCORE, NEW, NOW = 1, 2, 3, 4, 5, 6, 7, 8, 9 -- what is read of a limiter
local FIGURES = 9 -- of a limiter

-- read_plain reads a limiter, numbered from 0. It stores its figures in read, and returns true, if its state allows a plain
-- grant: the rate, the interval (ms), the free permits with the expired ones, the stored free permits (false: none), the
-- expired records, the TTL, the score of a grant, whether the limiter is new, and now (ms), which is given as a number and as
-- text.
-- Flags: s compare the free permits with the records, w scores in whole ms.
local function read_plain(read, number, configured_rate, flags, now, now_text, most_expired)
  local key = 5 * number
  local config = call('HMGET', KEYS[key + 1], 'rate', 'interval', 'type', 'keepAliveTime')
  local rate, interval, kind = config[1], config[2], config[3]
  local new = configured_rate ~= '' and not (rate or interval or kind or config[4])
  if new then
    rate, interval, kind = string.match(configured_rate, '^(%d+) (%d+) (0) 0$')
  end
  if
    kind ~= '0'
    or config[4]
    or not rate
    or not interval
    or not find(rate, '^%d+$')
    or #rate > 15
    or not find(interval, '^[1-9]%d*$')
    or #interval > 15
    or configured_rate ~= '' and configured_rate ~= rate .. ' ' .. interval .. ' 0 0'
  then
    return false
  end
  rate, interval = tonumber(rate), tonumber(interval)
  local records, cutoff = KEYS[key + 4], now - interval
  local expired_count, expired_permits = 0, 0
  local stored = call('GET', KEYS[key + 2])
  local oldest = call('ZRANGE', records, '0', '0', 'WITHSCORES')
  local stays = oldest[1] -- the oldest record that stays
  if stays and tonumber(oldest[2]) <= cutoff then
    local expired = { stays } -- mostly this one only
    oldest = call('ZRANGE', records, '1', '1', 'WITHSCORES')
    stays = oldest[1]
    if stays and tonumber(oldest[2]) <= cutoff then
      expired = call('ZRANGEBYSCORE', records, '-inf', cutoff, 'LIMIT', '0', most_expired)
      stays = call('ZRANGE', records, #expired, #expired)[1]
    end
    expired_count = #expired
    for i = 1, expired_count do
      local a, b, c, d = string.byte(expired[i], -4, -1)
      if d then
        expired_permits = expired_permits + a + b * 256 + c * 65536 + d * 16777216
      end
    end
  end
  local counted = stored and (find(stored, '^[1-9]%d*$') and #stored <= 15 or stored == '0') and tonumber(stored)
  local unused = not stored and not stays and expired_count == 0
  local free = counted and counted + expired_permits or unused and rate
  if not free or free > rate or not stays and free ~= rate or expired_count == most_expired then
    return false
  end
  if stays and find(flags, 's', 1, true) then
    local live, sum = call('ZRANGE', records, expired_count, expired_count + 255), free
    for i = 1, #live do
      local a, b, c, d = string.byte(live[i], -4, -1)
      if d then
        sum = sum + a + b * 256 + c * 65536 + d * 16777216
      end
    end
    if sum ~= rate or #live == 256 then
      return false
    end
  end
  local score = (interval >= FRACTIONS_BELOW or find(flags, 'w', 1, true)) and math.ceil(now) or now
  local at = FIGURES * number
  read[at + RATE], read[at + INTERVAL], read[at + FREE], read[at + COUNTED] = rate, interval, free, counted or false
  read[at + EXPIRED], read[at + TTL], read[at + NEW], read[at + NOW] = expired_count, call('PTTL', KEYS[key + 1]), new, now
  read[at + SCORE] = score == now and now_text or score -- a text costs Redis less than a number
  return true
end

-- write_plain writes what follows the record of a plain grant, after which so many permits are free.
local function write_plain(read, number, left)
  local key, at = 5 * number, FIGURES * number
  local counted, expired_count, ttl = read[at + COUNTED], read[at + EXPIRED], read[at + TTL]
  if not counted then
    call('SET', KEYS[key + 2], string.format('%.0f', left))
  elseif left ~= counted then
    call('INCRBY', KEYS[key + 2], left - counted)
  end
  if expired_count > 0 then
    call('ZREMRANGEBYRANK', KEYS[key + 4], '0', expired_count - 1)
  end
  if ttl > 0 then
    call('PEXPIRE', KEYS[key + 2], ttl)
    call('PEXPIRE', KEYS[key + 4], ttl)
  elseif ttl == -2 and counted then -- as in commit.lua
    call('PERSIST', KEYS[key + 2])
    call('PERSIST', KEYS[key + 4])
  end
end
local MOST = 128 -- expired records of a limiter: a call must not take long
local now_text, now = ARGV[1], tonumber(ARGV[1])
local last = #KEYS / 5 - 1
local read, reply = {}, {}
local seen = {} -- records keys: what is read of a limiter is wrong after a grant of the same limiter
for i = 0, last do
  local at, records = 4 * i, KEYS[5 * i + 4]
  if not seen[records] then
    seen[records] = true
    read_plain(read, i, ARGV[at + 4], ARGV[at + 5], now, now_text, MOST)
  end
end
for i = 0, last do
  local figure, at = FIGURES * i, 4 * i
  local status, left = 10, 0
  local free = read[figure + FREE] -- nil: its state allows no plain grant
  if free and not read[figure + NEW] then
    left = free - tonumber(ARGV[at + 2])
    if left >= 0 and call('ZADD', KEYS[5 * i + 4], 'NX', read[figure + SCORE], ARGV[at + 3]) == 1 then
      status = 0
      write_plain(read, i, left)
    end
  end
  local rate, interval = read[figure + RATE] or 0, read[figure + INTERVAL] or 0
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = status, rate, interval, left
end
return reply
