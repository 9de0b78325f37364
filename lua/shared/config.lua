-- config.lua: the keys of a limiter, its configuration, numbers as they are stored, the clock, and
-- the score that a grant gets. A limiter has five keys: 1 config, 2 value, 3 client value, 4
-- permits, 5 client permits.

-- choose_keys returns the keys of the value and of the records, by the type of the limiter: '0' has
-- one pair for all clients, '1' one for each client. offset is the number of keys before those of
-- the limiter.
local function choose_keys(offset, kind)
  if kind == '1' then
    return KEYS[offset + 3], KEYS[offset + 5]
  end
  return KEYS[offset + 2], KEYS[offset + 4]
end

-- parse_number returns the number that a text of digits is, at most MAX_NUMBER; nil for any other
-- text: tonumber also takes 'nan', 'inf' and '0x10', and not on every server the same.
local function parse_number(text)
  return text and find(text, '^%d+$') and (#text <= 15 and tonumber(text) or MAX_NUMBER) or nil
end

-- parse_value returns the free permits as a number if the text has the form that INCRBY accepts,
-- else nil. They are negative after the rate was lowered below what is granted.
local function parse_value(stored)
  if stored and find(stored, '^-?[1-9]%d*$') then
    return #stored <= 15 and tonumber(stored) or stored == '1000000000000000' and MAX_NUMBER or nil
  end
  return stored == '0' and 0 or nil
end

-- new_limiter returns a limiter: name, value, records (keys), own (the pair is this client's
-- alone), rate, interval (ms), keep_alive (ms; 0: none).
local function new_limiter(offset, rate, interval, kind, keep_alive)
  local value, records = choose_keys(offset, kind)
  return {
    name = KEYS[offset + 1],
    value = value,
    records = records,
    own = kind == '1',
    rate = rate,
    interval = interval,
    keep_alive = keep_alive,
  }
end

-- forget_ended_state removes the state of a limiter whose configuration has just expired: keys that
-- expire within 10 ms. The state expires a moment after the configuration, because a script reads
-- that TTL first and sets the state's later. A new limiter must not count the state.
local function forget_ended_state(value, records)
  local a, b = call('PTTL', value), call('PTTL', records)
  local last = math.max(a, b)
  if a ~= -1 and b ~= -1 and last >= 0 and last <= 10 then
    call('GET', value) -- fails if the key has another type, as the next call does
    call('ZCARD', records)
    call('UNLINK', value, records)
  end
end

-- read_config reads the configuration of a limiter. configured_rate is the caller's rate ('rate
-- interval type keep-alive'), which takes the place of missing fields, or nil; config is the reply
-- of HMGET if it was read before. It returns a limiter with three more fields: mismatch (the
-- caller's rate is another one), missing (fields and values that HSET must write, or nil), made
-- (there is no configuration yet; then the state of a limiter that has ended is removed). Without a
-- usable configuration it returns nil and a status: 1 nothing is set; 2, 3, 4 rate, interval, type
-- is missing; 5, 6, 7 the same is invalid.
local function read_config(offset, configured_rate, config)
  local missing, made = nil, false
  config = config or call('HMGET', KEYS[offset + 1], 'rate', 'interval', 'type', 'keepAliveTime')
  if not (config[1] and config[2] and config[3]) then
    if not configured_rate then
      if not (config[1] or config[2] or config[3]) then
        return nil, 1
      end
      return nil, config[1] and (config[2] and 4 or 3) or 2
    end
    missing, made = {}, not (config[1] or config[2] or config[3] or config[4])
    local fields, i = { 'rate', 'interval', 'type', 'keepAliveTime' }, 0
    for text in string.gmatch(configured_rate, '%d+') do
      i = i + 1
      if not config[i] and not (i == 4 and text == '0') then
        config[i] = text
        missing[#missing + 1] = fields[i]
        missing[#missing + 1] = text
      end
    end
  end
  local rate, interval, kind = parse_number(config[1]), parse_number(config[2]), config[3]
  if find(config[1], '^%-%d+$') then
    rate = 0 -- Java can set a negative rate, which also grants nothing
  end
  if not rate then
    return nil, 5
  elseif not interval or interval < 1 then
    return nil, 6
  elseif kind ~= '0' and kind ~= '1' then
    return nil, 7
  end
  local limiter = new_limiter(offset, rate, interval, kind, parse_number(config[4]) or 0)
  limiter.mismatch = configured_rate
    and configured_rate ~= config[1] .. ' ' .. config[2] .. ' ' .. kind .. ' ' .. (config[4] or '0')
  limiter.missing, limiter.made = missing, made
  if made then
    forget_ended_state(limiter.value, limiter.records)
  end
  return limiter
end

-- is_foreign tells whether KEYS[i] belongs to another program: it has not the Redis type that a
-- limiter gives it. Such a key is neither removed nor changed.
local function is_foreign(i)
  local found = call('TYPE', KEYS[i]).ok
  return found ~= 'none' and found ~= ({ 'hash', 'string', 'string', 'zset', 'zset' })[(i - 1) % 5 + 1]
end

-- read_clock returns the time in ms, exact to the µs: the client's, given as text, or this server's
-- if that is ''.
local function read_clock(client_now)
  if client_now ~= '' then
    return tonumber(client_now)
  end
  local time = call('TIME')
  return (tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000
end

-- grant_score returns the score of a grant, and whether it is the end of a bucket. It is never
-- earlier than now, so that no window holds more than the rate. With a bucket (ms) it is the end of
-- a bucket of time of that length. With a granularity one record then stands for all that a client
-- is granted within it. A lease lasts for at least a quarter of a bucket, so that the next one can
-- be taken before the end of the last. Without a bucket it is now, or the next whole ms if the
-- interval is long or whole_ms: Redis keeps up to 128 records in a list, and adding one takes three
-- times as long if their scores are fractions. Redisson before 3.16.4 returns waits that are too
-- short where scores are fractions.
local function grant_score(now, interval, bucket, lease, whole_ms)
  local length = bucket and math.min(bucket, math.floor(interval / 10)) or 1
  if length > 1 then
    return math.ceil((lease and now + length / 4 or now) / length) * length, true
  elseif interval >= FRACTIONS_BELOW or whole_ms then
    return math.ceil(now), false
  end
  return now, false
end
