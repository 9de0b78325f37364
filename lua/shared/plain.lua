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
