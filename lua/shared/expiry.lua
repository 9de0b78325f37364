-- expiry.lua: when a record expires.

-- expires_in returns in how many µs a record of a score expires; not later than the limiter does. That may have expired since
-- this script began: on the embedded server time goes on.
local function expires_in(state, score)
  local longest = state.ttl < 0 and MAX_NUMBER or math.min(MAX_NUMBER, state.ttl + 1)
  return math.max(1, to_micros(math.min(longest, tonumber(score) - state.cutoff)))
end
