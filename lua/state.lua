-- state.lua looks at a limiter and changes nothing, not even what has expired. It reads every record, unless it is asked
-- for the configuration alone.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 now (ms; '': this server's clock), 2 flags: c configuration alone
-- reply 1 status (0, 1 to 7 not initialised: config.lua), then with status 0:
--       2 rate, 3 interval (ms), 4 type, 5 keep-alive (ms), then, without c: 6 permits free, 7 permits in live records, 8 live records,
--       9 and 10 time of the oldest and of the newest of them (ms; 0: none), 11 life time of the configuration (ms; -1:
--       none), 12 1 if free permits and records add up to the rate, else 0

--@include numbers
--@include permits
--@include clock
--@include config

local limiter, fault = configured(0)
if not limiter then
  return { fault }
end
local config = { 0, limiter.rate, limiter.interval, limiter.own and 1 or 0, limiter.keep }
if ARGV[2] == 'c' then
  return config
end

-- How many records are read at a time.
local PAGE = 5000

local stored = redis.call('GET', limiter.value)
local value = plain(stored)
local edge = clock(ARGV[1]) - limiter.interval
local expired, used, count, all = 0, 0, 0, 0
local oldest, newest = 0, 0
repeat
  local page = redis.call('ZRANGE', limiter.records, all, all + PAGE - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    local at = score(page[i + 1])
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

local free, consistent
if count == 0 then
  free = limiter.rate
  consistent = value and value + expired == free or all == 0 and not stored
elseif not value or value + expired > limiter.rate then
  free, consistent = math.max(0, limiter.rate - used), false
else
  free = value + expired
  consistent = free + used == limiter.rate
  if value < 0 and count <= 256 then
    free = limiter.rate - used -- as rebuild.lua has it
  end
end
local life = redis.call('PTTL', limiter.name)
for _, figure in ipairs({ math.max(0, free), used, count, oldest, newest, life, consistent and 1 or 0 }) do
  config[#config + 1] = figure
end
return config
