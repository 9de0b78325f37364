-- state.lua looks at a limiter and changes nothing, not even what has expired. It reads every record, unless it is asked
-- for the configuration alone.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 now (ms; '': this server's clock), 2 flags: c configuration alone
-- reply 1 status (0, 1 to 7 not initialised: config.lua), then with status 0:
--       2 rate, 3 interval (ms), 4 type, 5 keep-alive (ms), then, without c: 6 permits free, 7 permits in live records,
--       8 live records, 9 and 10 time of the oldest and of the newest of them (ms; 0: none), 11 life time of the
--       configuration (ms; -1: none), 12 1 if free permits and records add up to the rate, else 0

--@include names
local from, asked, given = 0, ARGV[1], nil
--@include config
if fault then
  return { fault }
end
local answer = { 0, rate, interval, own and 1 or 0, keep }
if ARGV[2] == 'c' then
  return answer
end
--@include clock
--@include stored
--@include permits

-- How many records are read at a time.
local PAGE = 5000

local edge = now - interval
local expired, used, count, all = 0, 0, 0, 0
local oldest, newest = 0, 0
repeat
  local page = call('ZRANGE', records, all, all + PAGE - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    local at = tonumber(page[i + 1])
    if at <= edge then
      expired = expired + permits(page[i])
    else
      used, count = used + permits(page[i]), count + 1
      newest = math.min(at, MOST)
      oldest = count == 1 and newest or oldest
    end
  end
  all = all + #page / 2
until #page < 2 * PAGE

--@include judge
local life = call('PTTL', name)
for _, figure in ipairs({ free, used, count, oldest, newest, life, consistent and 1 or 0 }) do
  answer[#answer + 1] = figure
end
return answer
