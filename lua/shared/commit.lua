-- commit.lua: the writes that end a script. A script that grants adds its records before: a server
-- that is out of memory refuses that, and then nothing is written.

-- commit writes the free permits if they changed, and removes the expired records.
local function commit(limiter, state, free)
  if not state.counted then
    call('SET', limiter.value, string.format('%.0f', free))
  elseif free ~= state.counted then
    call('INCRBY', limiter.value, string.format('%.0f', free - state.counted))
  end
  if state.expired_count > 0 then
    call('ZREMRANGEBYRANK', limiter.records, '0', state.expired_count - 1)
  end
end
