-- limiters.lua reads what a script for several limiters needs of each.

-- read_limiter returns the configuration and the state of a limiter, numbered from 0, and the time
-- of the call; or nil and a status. found: an earlier attempt of the call was executed.
local function read_limiter(number, configured_rate, flags, client_now, found)
  local limiter, fault = read_config(5 * number, configured_rate)
  local enforced = find(flags, ENFORCE, 1, true)
  if not limiter or enforced and limiter.mismatch and not found then
    return nil, enforced and 8 or fault
  end
  local now = read_clock(client_now)
  local state = load_state(limiter, now, find(flags, REBUILD, 1, true), find(flags, CHECK, 1, true))
  state.notes = state.notes + (limiter.mismatch and RATE_MISMATCH or 0)
  return limiter, state, now
end
