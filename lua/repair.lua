-- repair.lua computes the free permits anew from the records, or forgets both. It reads every record.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 flags: d change nothing, r forget the records
-- reply 1 status (0, 1 to 7 not initialised: config.lua), then with status 0:
--       2 1 if something is, or is to be, changed, else 0; 3 what was stored: 0 a number, 1 nothing, 2 no number; 4 that
--       number, 5 what is right; 6 records, 7 permits in them

--@include names
local from, given = 0, nil
--@include config
if fault then
  return { fault }
end
--@include stored
--@include permits

-- How many records are read at a time.
local PAGE = 5000

local held, all = 0, 0
repeat
  local page = call('ZRANGE', records, all, all + PAGE - 1)
  for i = 1, #page do
    held = held + permits(page[i])
  end
  all = all + #page
until #page < PAGE

local dry, forget = find(ARGV[1], 'd', 1, true), find(ARGV[1], 'r', 1, true)
local free = forget and rate or math.max(rate - held, 1 - MOST)
local change = forget and (stored or all > 0) or not forget and counted ~= free and (stored or all > 0)
if change and not dry then
  if forget then
    call('DEL', value, records)
  else
    local life = keep == 0 and call('PTTL', name) or -1
    call('SET', value, string.format('%.0f', free))
    --@include renew
  end
end
return { 0, change and 1 or 0, not stored and 1 or not counted and 2 or 0, counted or 0, free, all, held }
