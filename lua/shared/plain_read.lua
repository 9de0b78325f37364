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
