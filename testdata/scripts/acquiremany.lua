-- acquiremany.lua grants permits to the batches of several limiters, each for itself, by plain grants (plain_read.lua). What is
-- no plain grant, is asked of a limiter without a configuration, or is asked of a limiter for the second time, has no effect,
-- and the client asks for it by acquire.lua. Nor has an error any effect: all limiters are read before one is written.
--
-- KEYS  five a limiter: config, value, client value, permits, client permits
-- ARGV  1 now (ms, up to three decimals), then four a limiter: permits, the record that holds them, the caller's rate ("rate
--       interval type keep-alive"; '': none), flags (of plain_read.lua)
-- reply four a limiter: status (0; 10 no plain grant), rate, interval (ms), permits free afterwards

-- base.lua: constants. It defines no function: each definition costs a tenth of a call of Redis.
local call, find, tonumber = redis.call, string.find, tonumber
local MAX_PERMITS = 1e15 -- scripts count with no more permits than this
local MAX_EXPIRED = 2000 -- records that leave in one call: a million of them must not block Redis
local MAX_ADDED = 256 -- live records that a refusal adds up, and any call where the free permits are negative
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
local most_expired = 128 -- records of one limiter; more would take the call too long
local now_text, now = ARGV[1], tonumber(ARGV[1])
local last = #KEYS / 5 - 1
local read, reply = {}, {} -- read[i]: of limiter i, from 0, if its state allows a plain grant
local seen = {} -- records keys: what is read of a limiter is wrong after a grant of the same limiter
for i = 0, last do
  local key, at = 5 * i, 4 * i
  if not seen[KEYS[key + 4]] then
    seen[KEYS[key + 4]] = true
    local configured_rate, flags = ARGV[at + 4] ~= '' and ARGV[at + 4], ARGV[at + 5]
-- plain_read.lua reads what a plain grant needs of a limiter. A plain grant is one record that joins no other, in a limiter of
-- type '0' without keep-alive, whose state needs no repair and is not older than the configuration. This is a block to be
-- included, as a function would be slower. A plain grant makes these calls to Redis:
--   HMGET   the configuration, which others may change at any time
--   GET     the free permits, which must be checked before they are used
--   ZRANGE  the oldest record: whether any has expired, whether there is any
--   PTTL    the TTL to apply to the state
--   ZADD    the record: the first write, unless the limiter is new; a full server refuses it
--   INCRBY  the free permits
-- Without a configuration HSET comes before ZADD, and without stored free permits SET replaces INCRBY. An expired record costs
-- ZRANGE (the next one) and ZREMRANGEBYRANK; more of them also ZRANGEBYSCORE (their permits) and ZRANGE (the oldest of the
-- others); a check ZRANGE (the records); a TTL PEXPIRE of both keys.
--
-- Given: key (KEYS[key + 1] to KEYS[key + 5] are the limiter's), configured_rate ("rate interval type keep-alive"; nil or
-- false: none), now (ms; nil or false: becomes this server's time), now_text (now as text; nil or false: none), flags (s compare
-- the free permits with the records, w scores in whole ms), most_expired (with so many expired records it is no plain grant).
-- Result: name, value and records (the keys), fields (the configuration as read), and free, the free permits with the expired
-- ones; nil: the state allows no plain grant. Only with free: rate, interval, kind, new (the limiter has no configuration
-- yet), stored and counted (the stored free permits, as text and as a number; false: none), expired_count, expired_permits,
-- oldest (the oldest record that stays, and its score), cutoff, ttl, score (of a grant), score_text (the same for ZADD).
local name, value, records = KEYS[key + 1], KEYS[key + 2], KEYS[key + 4]
local fields = call('HMGET', name, 'rate', 'interval', 'type', 'keepAliveTime')
local rate, interval, kind = fields[1], fields[2], fields[3]
local new = configured_rate and not (rate or interval or kind or fields[4])
if new then
  rate, interval, kind = string.match(configured_rate, '^(%d+) (%d+) (0) 0$')
end
local free, stored, counted, oldest, cutoff, ttl, score, score_text
local expired_count, expired_permits = 0, 0
if
  kind == '0'
  and not fields[4]
  and rate
  and interval
  and find(rate, '^%d+$')
  and #rate <= 15
  and find(interval, '^[1-9]%d*$')
  and #interval <= 15
  and (not configured_rate or configured_rate == rate .. ' ' .. interval .. ' 0 0')
then
  rate, interval = tonumber(rate), tonumber(interval)
  if not now then
    local time = call('TIME')
    now = (tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000
  end
  cutoff = now - interval
  stored = call('GET', value)
  oldest = call('ZRANGE', records, '0', '0', 'WITHSCORES')
  if oldest[1] and tonumber(oldest[2]) <= cutoff then
    local expired = { oldest[1] } -- mostly this one only
    oldest = call('ZRANGE', records, '1', '1', 'WITHSCORES')
    if oldest[1] and tonumber(oldest[2]) <= cutoff then
      expired = call('ZRANGEBYSCORE', records, '-inf', cutoff, 'LIMIT', '0', most_expired)
      oldest = call('ZRANGE', records, #expired, #expired, 'WITHSCORES')
    end
    expired_count = #expired
    for n = 1, expired_count do
      local a, b, c, d = string.byte(expired[n], -4, -1)
      if d then
        expired_permits = expired_permits + a + b * 256 + c * 65536 + d * 16777216
      end
    end
  end
  counted = stored and (find(stored, '^[1-9]%d*$') and #stored <= 15 or stored == '0') and tonumber(stored)
  local unused = not stored and not oldest[1] and expired_count == 0
  free = unused and rate or counted and not new and counted + expired_permits or nil
  if free and (free > rate or not oldest[1] and free ~= rate or expired_count == most_expired) then
    free = nil
  elseif free and oldest[1] and find(flags, 's', 1, true) then
    local live, sum = call('ZRANGE', records, expired_count, expired_count + 255), free
    for n = 1, #live do
      local a, b, c, d = string.byte(live[n], -4, -1)
      if d then
        sum = sum + a + b * 256 + c * 65536 + d * 16777216
      end
    end
    if sum ~= rate or #live == 256 then -- more are left to the general path
      free = nil
    end
  end
  if free then
    ttl = call('PTTL', name)
    score = (interval >= FRACTIONS_BELOW or find(flags, 'w', 1, true)) and math.ceil(now) or now
    score_text = score == now and now_text or score -- a text costs Redis less than a number
  end
end
    if free and not new then
      read[i] = { rate, interval, free, counted, expired_count, ttl, score_text }
    end
  end
end
for i = 0, last do
  local at, value, records = 4 * i, KEYS[5 * i + 2], KEYS[5 * i + 4]
  local status, rate, interval, left = 10, 0, 0, 0
  if read[i] then
    local free, counted, expired_count, ttl, score_text
    rate, interval, free, counted, expired_count, ttl, score_text = unpack(read[i])
    left = free - tonumber(ARGV[at + 2])
    if left >= 0 and call('ZADD', records, 'NX', score_text, ARGV[at + 3]) == 1 then
      status = 0
-- plain_write.lua writes what follows the record of a plain grant.
-- Given: value and records (the keys), counted, expired_count and ttl (of plain_read.lua), left (the permits free afterwards).
if not counted then
  call('SET', value, string.format('%.0f', left))
elseif left ~= counted then
  call('INCRBY', value, left - counted)
end
if expired_count > 0 then
  call('ZREMRANGEBYRANK', records, '0', expired_count - 1)
end
if ttl > 0 then
  call('PEXPIRE', value, ttl)
  call('PEXPIRE', records, ttl)
end
    end
  end
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = status, rate, interval, left
end
return reply
