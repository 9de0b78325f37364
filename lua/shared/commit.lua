-- commit.lua: the writes that end a script. A script that grants adds its records before: a full server refuses that, and then
-- nothing is written.

-- commit writes the free permits if they changed, and removes the expired records.
local function commit(limiter, state, free)
  if not state.counted then
    call('SET', limiter.value, string.format('%.0f', free))
  elseif free ~= state.counted then
    call('INCRBY', limiter.value, free - state.counted) -- Redis gets a number up to 1e15 as it is
  end
  if state.expired_count > 0 then
    call('ZREMRANGEBYRANK', limiter.records, '0', state.expired_count - 1)
  end
end

-- apply_ttl gives the state the TTL of the configuration (ms; none below 1), or all keys the keep-alive. An interval
-- after its last use, the pair of one client holds nothing that counts; it expires a minute later. lease: ms until the end
-- of the lease that this call has taken, else nil. Its permits are used until then, without a call.
local function apply_ttl(limiter, ttl, lease)
  if limiter.keep_alive > 0 then
    ttl = limiter.keep_alive
    if lease then
      ttl = math.max(ttl, limiter.interval + math.ceil(lease))
    end
    call('PEXPIRE', limiter.name, ttl)
  end
  local longest = limiter.interval + 60000 + math.ceil(lease or 0)
  if limiter.own and (ttl <= 0 or ttl > longest) then
    ttl = longest
  end
  if ttl > 0 then
    call('PEXPIRE', limiter.value, ttl)
    call('PEXPIRE', limiter.records, ttl)
  end
end
