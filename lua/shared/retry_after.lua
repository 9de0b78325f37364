-- retry_after.lua: what acquire.lua tells after a refusal.

-- explain_refusal sets the waits of the groups, with detail or if there are strict groups. It
-- returns the us until all permits are free (with detail); the us until the permits are free, too,
-- that return shortly after those of the first refused request in a strict group; and the client of
-- a record (origin_of). left: how many permits are free after this call, and kept: how many of
-- these are kept free; score: of what it grants. walk_records has prepared the state, in whose
-- notes a record is noted that no Go client wrote.
local function explain_refusal(limiter, state, groups, strict, left, kept, score, detail, prefix)
  local reset_in, together_in
  local taken = state.free - left
  if detail or strict > 0 then
    local waits = {} -- by size: sizes are few, requests many
    for i, group in ipairs(groups) do
      local size = group.size
      if group.granted >= 0 and group.granted < group.count then
        waits[size] = waits[size] or free_in(limiter, state, size, left - kept, taken, score)
        group.wait = waits[size]
        together_in = together_in or i <= strict and together_free_in(limiter, state, group.wait, taken, score)
      end
    end
  end
  if detail then
    reset_in = all_free_in(limiter, state, state.live_count, taken, score)
  end
  local origin = state.oldest and origin_of(state.oldest) or -2
  if strict > 0 then
    origin = find_writers(state, prefix)
  end
  return reset_in, together_in, origin
end
