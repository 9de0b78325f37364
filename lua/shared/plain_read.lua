-- plain_read.lua reads what a plain grant needs of a limiter. A plain grant is one record that
-- joins no other, in a limiter of type '0', whose state needs no repair and is not older than the
-- configuration. A keep-alive must be one that apply_ttl (keep_alive.lua) would not lengthen. This
-- is a block to be included, as a function would be slower.
-- A plain grant makes these calls to Redis:
--   HMGET   the configuration, which others may change at any time
--   GET     the free permits, which must be checked before they are used
--   ZCOUNT  the expired records
--   ZCARD   all records: if none is live, all permits must be free. If telling is set and at most
--           half of the rate remains, ZRANGE reads the oldest live record instead
--   PTTL    the TTL to apply to the state. With a keep-alive, ZRANGE reads the newest record
--           instead, and ZCARD is left out
--   ZADD    the record: the first write, unless the limiter is new; a server that is
--           out of memory refuses it
--   DECRBY  the free permits
-- Without a configuration HSET comes before ZADD, and without stored free permits SET replaces
-- DECRBY. Expired records cost ZRANGE (their permits) and ZREMRANGEBYRANK, and INCRBY replaces
-- DECRBY; a check costs ZRANGE (the live records); a TTL PEXPIRE of both keys, a keep-alive of all
-- three.
--
-- Given: name, value and records (the keys), configured_rate ("rate interval type keep-alive"; nil
-- or false: none), now (ms; nil or false: becomes this server's time), now_text and whole_text
-- (now, and the next whole ms, as text; nil or false: none), flags (CHECK and WHOLE_SCORES count),
-- most_expired (with so many expired records it is no plain grant), telling (the permits to be
-- granted, if the oldest live record is asked for; nil or false: it is not). Result: fields (the
-- configuration as read), and free, the free permits with the expired ones; nil: the state allows
-- no plain grant. Only with free: rate, interval, keep_alive (ms; 0: none), new (the fields and
-- values of a limiter that has no configuration yet), stored and counted (the stored free permits,
-- as text and as a number; false: none), expired_count, expired_permits, live_count (nil: not
-- read), oldest (the oldest live record and its score; nil: not read), cutoff, ttl (ms, of the
-- state; below 0: none, or a keep-alive), score (of a grant), score_text (the same for ZADD),
-- next_us (µs until a permit returns; nil if no live record was read).
local fields = call('HMGET', name, 'rate', 'interval', 'type', 'keepAliveTime')
local rate, interval, kind, keep_alive = fields[1], fields[2], fields[3], fields[4]
local new = configured_rate and not (rate or interval or kind or keep_alive)
if new then
  rate, interval, kind, keep_alive = string.match(configured_rate, '^(%d+) (%d+) (0) (%d+)$')
  new = { 'rate', rate, 'interval', interval, 'type', kind }
  if keep_alive ~= '0' then
    new[7], new[8] = 'keepAliveTime', keep_alive
  end
end
keep_alive = keep_alive or '0'
local free, stored, counted, expired_count, live_count, oldest, cutoff, ttl, score, score_text, next_us
local expired_permits = 0
if
  kind == '0'
  and rate
  and interval
  and (
    not configured_rate
      and #rate <= 15
      and #interval <= 15
      and #keep_alive <= 15
      and find(rate, '^%d+$')
      and find(interval, '^[1-9]%d*$')
      and find(keep_alive, '^%d+$')
    or configured_rate and configured_rate == rate .. ' ' .. interval .. ' 0 ' .. keep_alive
  )
then
  rate, interval, keep_alive = tonumber(rate), tonumber(interval), tonumber(keep_alive)
  if not now then
    local time = call('TIME')
    now = (tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000
  end
  cutoff = now - interval
  stored = call('GET', value)
  expired_count = call('ZCOUNT', records, '-inf', cutoff)
  counted = stored and (find(stored, '^[1-9]%d*$') and #stored <= 15 or stored == '0') and tonumber(stored)
  local live, newest -- whether there is a live record, and with a keep-alive the score of the newest record
  if keep_alive > 0 then
    newest = tonumber(call('ZRANGE', records, '-1', '-1', 'WITHSCORES')[2])
    live = newest and newest > cutoff
  end
  if telling and counted and (counted - telling) * 2 <= rate then
    oldest = call('ZRANGE', records, expired_count, expired_count, 'WITHSCORES')
    live = oldest[1]
  elseif keep_alive == 0 then
    live_count = call('ZCARD', records) - expired_count
    live = live_count > 0
  end
  if expired_count > 0 and expired_count < most_expired then
    local expired = call('ZRANGE', records, '0', expired_count - 1)
    for n = 1, expired_count do
      local a, b, c, d = string.byte(expired[n], -4, -1)
      if d then
        expired_permits = expired_permits + a + b * 256 + c * 65536 + d * 16777216
      end
    end
  end
  local unused = not stored and not live and expired_count == 0
  free = unused and rate or counted and not new and counted + expired_permits or nil
  if free and (free > rate or not live and free ~= rate or expired_count >= most_expired) then
    free = nil
  elseif free and flags ~= '' and live and find(flags, CHECK, 1, true) then
    local added, sum = call('ZRANGE', records, expired_count, expired_count + 255), free
    for n = 1, #added do
      local a, b, c, d = string.byte(added[n], -4, -1)
      if d then
        sum = sum + a + b * 256 + c * 65536 + d * 16777216
      end
    end
    if sum ~= rate or #added == 256 then -- more are left to the general path
      free = nil
    end
  end
  if free then
    ttl = keep_alive == 0 and call('PTTL', name) or -1
    score = (interval >= FRACTIONS_BELOW or find(flags, WHOLE_SCORES, 1, true)) and math.ceil(now) or now
    score_text = score == now and now_text or whole_text or score -- a text costs Redis less than a number
    if oldest and live then
      local until_next = math.min(tonumber(oldest[2]), score) - cutoff
      until_next = ttl >= 0 and math.min(until_next, ttl + 1) or until_next
      next_us = math.max(1, math.ceil(until_next * 1000 - 0.3)) -- as to_micros has it
    end
    if keep_alive > 0 and keep_alive - interval - LATENESS < math.max(newest or score, score) - now then
      free = nil
    end
  end
end
