-- close.lua writes what open.lua read and a script decided.

-- save writes the configuration where it was missing, the free permits if they changed, and removes the records that
-- leave. Before it comes what is granted: a server that is full refuses that, and then nothing is written.
local function save(limiter)
  if limiter.stored == nil then
    redis.call('SET', limiter.value, string.format('%.0f', limiter.free))
  elseif limiter.free ~= limiter.stored then
    redis.call('INCRBY', limiter.value, string.format('%.0f', limiter.free - limiter.stored))
  end
  if limiter.dead > 0 then
    redis.call('ZREMRANGEBYRANK', limiter.records, 0, limiter.dead - 1)
  end
end

-- renew gives the state the life time of the configuration, or all keys the keep-alive. The state that belongs to one
-- client says nothing any more an interval after its last use, and leaves a minute later.
local function renew(limiter)
  local life = limiter.life
  if limiter.keep > 0 then
    life = limiter.keep
    redis.call('PEXPIRE', limiter.name, life)
  end
  if limiter.own and (life <= 0 or life > limiter.interval + 60000) then
    life = limiter.interval + 60000
  end
  if life > 0 then
    redis.call('PEXPIRE', limiter.value, life)
    redis.call('PEXPIRE', limiter.records, life)
  end
end
