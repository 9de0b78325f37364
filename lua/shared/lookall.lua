-- lookall.lua finds out whether an earlier attempt of the same call was granted, and dates its records anew: they must not be
-- older than the answer. It is part of allowall.lua.
--
-- sets   found, whether that is so
local found = false
local limiters = #KEYS / 5
if ARGV[6 * limiters + 1] then
  local known = {}
  for i = 0, limiters - 1 do
    local from, asked, prefix, given = 5 * i, ARGV[6 * i + 2], ARGV[6 * i + 3], nil
    local granularity, first = ARGV[6 * i + 6], tonumber(ARGV[6 * limiters + 1 + i])
    --@include config
    if fault then
      known[i + 1] = {} -- there is no limiter any more
    else
      --@include clock
      --@include bytes
      local at, wanted, shared, before = now, tonumber(ARGV[6 * i + 1]), granularity ~= '0', ''
      --@include bucket
      local ids = wanted > 4294967295 and math.floor(wanted / 4294967295) + 1 or 1
      local whole = ids == 1 and not shared and prefix .. bytes(wanted) or nil
      call('GET', value)
      --@include seek
      if not sought or #sought > 0 and share ~= wanted then
        return { 9, i }
      end
      known[i + 1] = { records = records, sought = sought, at = at }
    end
  end
  local missing = 0
  for i = 1, limiters do
    missing = missing + (known[i].sought and #known[i].sought > 0 and 0 or 1)
  end
  found = missing == 0
  if not found and missing < limiters then
    return { 9, 0 } -- expired here, and live there
  end
  for i = 1, limiters do
    if found then
      local records, sought, at = known[i].records, known[i].sought, known[i].at
      --@include redate
    end
  end
end
