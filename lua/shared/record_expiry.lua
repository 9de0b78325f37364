-- record_expiry.lua: when a record expires.

-- expires_in returns the µs until a record with a score expires, or the limiter if that is earlier.
-- It returns at least 1: on the embedded server time goes on during a script, so the limiter may
-- have expired already.
local function expires_in(state, score)
  local longest = state.ttl < 0 and MAX_NUMBER or math.min(MAX_NUMBER, state.ttl + 1)
  return math.max(1, to_micros(math.min(longest, tonumber(score) - state.cutoff)))
end
