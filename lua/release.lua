-- release.lua gives permits back before their time: those of the oldest grants first, so that what stays counted is
-- never older than the truth; or those that were granted at one time, and no others. Whole records leave; the last one
-- shrinks.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 now (ms; '': this server's clock), 2 permits, 3 flags: b finish a rebuild; then, to undo a grant, 4 its time (ms)
-- reply 1 status (0, 1 to 7 not initialised: config.lua), then with status 0:
--       2 notes (names.lua; with MORE, the caller asks again for the rest), 3 permits that came back

--@include names
local from, asked, rebuild, given = 0, ARGV[1], ARGV[3] == 'b', nil
--@include config
if fault then
  return { fault }
end
--@include clock
--@include settle

local wanted, back, undone = tonumber(ARGV[2]), 0, ARGV[4]
local gone, shrunk, at, rest = {}, nil, nil, nil
if not more then
  --@include permits
  local page = {}
  if not undone then
    page = call('ZRANGE', records, dead, dead + BATCH - 1, 'WITHSCORES')
  elseif tonumber(undone) > edge then
    page = call('ZRANGEBYSCORE', records, undone, undone, 'WITHSCORES', 'LIMIT', '0', BATCH)
  end
  for i = 1, #page, 2 do
    if back == wanted then
      break
    end
    local held = permits(page[i])
    if back + held > wanted then
      shrunk, at, rest = page[i], page[i + 1], back + held - wanted
      back = wanted
    else
      back = back + held
      if undone then
        gone[#gone + 1] = page[i]
      else
        dead = dead + 1
      end
    end
  end
  if back < wanted and #page == 2 * BATCH then
    notes = notes + MORE
  end
  free = math.min(rate, free + back)
end

--@include save
if #gone > 0 then
  call('ZREM', records, unpack(gone))
end
if shrunk then
  --@include add
  call('ZREM', records, shrunk)
  add(records, string.sub(shrunk, 1, -5), rest, at)
end
--@include renew
return { 0, notes, back }
