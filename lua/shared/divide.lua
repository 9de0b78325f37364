-- divide.lua decides who gets what, where there is not enough for all, or not all are to have something. It is part of
-- acquire.lua.
--
-- takes  what settle.lua sets; at; flags; found, what an earlier attempt was granted, or nil; given in ARGV 4 the groups, in
--        ARGV 2 a record
-- sets   free and notes (refusal.lua); left, the permits that remain free; groups, each with its size, its count, how many
--        are given and the wait of the others; lasts and origin, as the answer has them
groups, origin = {}, -2
local strict = 0
for size, count, mark in string.gmatch(ARGV[4], '(%d+)x(%d+)(!?)') do
  groups[#groups + 1] = { text = size, size = tonumber(size), count = tonumber(count), given = 0, wait = 0 }
  if mark ~= '' then
    strict = #groups
  end
end
local partly, queued = find(flags, 'u', 1, true), find(flags, 'q', 1, true)
local refused

local function grant()
  left, refused = found or free, false
  local blocked = false
  for i, group in ipairs(groups) do
    local size, fits = group.size, 0
    blocked = blocked or queued and i > strict
    if partly then
      group.given = math.max(0, math.min(size, left))
      left = left - group.given
    elseif size > rate and not (found and size <= left) then
      group.given = -1
    else
      if not blocked then
        fits = math.max(0, math.min(group.count, math.floor(left / size)))
        left = left - fits * size
      end
      group.given = fits
      if fits < group.count then
        refused = true
        blocked = blocked or i <= strict
      end
    end
  end
end

grant()
if found then
  -- What an attempt was granted is divided as it was then, to the last permit: each takes all that it can.
  if left > 0 then
    return { 9 }
  end
  left = free
end
if refused and not more then
  --@include refusal
  --@include origin
  if raised and not found then
    grant()
  elseif raised then
    left = free
  end
  local taken, told = free - left, find(flags, 'd', 1, true)
  if told or strict > 0 then
    local known = {} -- sizes are few, callers many
    for _, group in ipairs(groups) do
      if group.given >= 0 and group.given < group.count then
        known[group.text] = known[group.text] or wait(group.size, left, taken)
        group.wait = known[group.text]
      end
    end
  end
  if told then
    lasts = lasting(taken)
  end
  if oldest then
    origin = originOf(oldest)
    if strict > 0 then
      local other
      origin, other = strangers(walked, string.sub(ARGV[2], 1, -5), origin)
      notes = notes + (other and OTHER or 0)
    end
  end
end
