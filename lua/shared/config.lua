-- config.lua reads the configuration of a limiter. It needs numbers.

-- choose makes a limiter of a type: '0' has one state for all clients, '1' one for each.
local function choose(at, type, rate, interval, keep)
  local own = type == '1'
  return {
    name = KEYS[at + 1], value = KEYS[at + (own and 3 or 2)], records = KEYS[at + (own and 5 or 4)], own = own,
    rate = rate, interval = interval, keep = keep, life = -1, notes = 0, set = false,
    stored = 0, now = 0, free = 0, dead = 0, more = false, oldest = false, since = false,
  }
end

-- configured reads the limiter whose keys come after a number of keys. given is where in ARGV the rate of the caller
-- stands, if it has one: rate, interval, type, keep-alive. It sets what is missing. The answer is the limiter, or nil and
-- a code that tells what is wrong: 1 nothing is set; 2, 3, 4 rate, interval, type is missing; 5, 6, 7 the same can't be
-- used.
local function configured(at, given)
  local config = redis.call('HMGET', KEYS[at + 1], 'rate', 'interval', 'type', 'keepAliveTime')
  local set = false
  if not (config[1] and config[2] and config[3]) then
    if not given then
      if not (config[1] or config[2] or config[3]) then
        return nil, 1
      end
      return nil, config[1] and (config[2] and 4 or 3) or 2
    end
    set = {}
    for i, field in ipairs({ 'rate', 'interval', 'type', 'keepAliveTime' }) do
      local value = ARGV[given + i - 1]
      if not config[i] and not (i == 4 and value == '0') then
        config[i] = value
        set[#set + 1] = field
        set[#set + 1] = value
      end
    end
  end
  local rate, interval, type, keep = config[1], config[2], config[3], config[4]
  local limiter = choose(at, type, int(rate) or (string.find(rate, '^%d+$') and MOST), int(interval), keep and math.max(0, int(keep) or 0) or 0)
  limiter.set = set
  if given and (rate ~= ARGV[given] or interval ~= ARGV[given + 1] or type ~= ARGV[given + 2]
    or (keep or '0') ~= ARGV[given + 3]) then
    limiter.notes = 1024 -- DIFFERS
  end
  if not limiter.rate or limiter.rate < 0 then
    return nil, 5
  elseif not limiter.interval or limiter.interval < 1 then
    return nil, 6
  elseif type ~= '0' and type ~= '1' then
    return nil, 7
  end
  return limiter
end
