-- lease.lua: how many permits a lease takes ahead.

-- leased returns how many of the permits that are left a lease takes, at most so many: a quarter,
-- and never the last tenth of the rate, because others want some, too. A few are not worth it: the
-- next lease would follow soon, with another record. The lease ends at a score; if the limiter
-- expires before, there is none.
local function leased(limiter, state, now, left, most, score)
  local tenth = math.ceil(limiter.rate / 10)
  local ahead = math.min(most, math.floor(left / 4), left - tenth)
  ahead = ahead * 8 >= math.min(most, tenth) and ahead or 0
  local ttl = limiter.keep_alive > 0 and limiter.keep_alive or state.ttl
  return (ttl < 0 or ttl >= score - now) and ahead or 0
end
