-- keep_alive.lua: how long a limiter lives: the TTL of its keys.

-- apply_ttl gives the state the TTL of the configuration (ms; -1: none), or all keys the
-- keep-alive. While callers wait, a keep-alive is at least an interval and LATENESS: their process
-- calls again when permits return. waiting: this call refused such callers. Other calls do not
-- shorten that time, because callers may still wait. An interval after its last use, the pair of
-- one client holds nothing that counts; it expires a minute later. But records can be dated ahead:
-- at the end of a lease, whose permits are used until then without a call, and as long as a debt
-- lasts (debt.lua). If this call makes the configuration (limiter.made), an older state must not
-- end before it.
local function apply_ttl(limiter, ttl, now, waiting)
  local name, value, records, own = limiter.name, limiter.value, limiter.records, limiter.own
  if limiter.keep_alive > 0 or own then
    local newest = tonumber(call('ZRANGE', records, '-1', '-1', 'WITHSCORES')[2])
    local ahead = newest and newest - now or 0
    local used = limiter.interval + (ahead >= 1 and math.ceil(math.min(ahead, MAX_NUMBER)) or 0)
    if limiter.keep_alive > 0 then
      ttl = limiter.keep_alive
      if ttl >= limiter.interval and ttl < used + LATENESS then -- with a shorter one, grants are forgotten early anyway
        ttl = math.max(ttl, used, math.min(used + LATENESS, waiting and MAX_NUMBER or call('PTTL', name)))
      end
      call('PEXPIRE', name, string.format('%.0f', ttl))
    end
    local longest = used + 60000
    if own and (ttl <= 0 or ttl > longest) then
      ttl = longest
    end
  end
  if ttl > 0 then
    ttl = math.min(ttl, MAX_NUMBER)
    call('PEXPIRE', value, string.format('%.0f', ttl))
    call('PEXPIRE', records, string.format('%.0f', ttl))
  elseif limiter.made then
    call('PERSIST', value)
    call('PERSIST', records)
  end
end
