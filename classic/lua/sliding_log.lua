-- sliding_log.lua counts the permits of the last interval, with a record of the time of each grant.
--
-- KEYS  1 hash: cursor (ms), currentRate; 2 zset: score = time (ms), member = permits, then any
--       text
-- ARGV  1 limit, 2 interval (ms), 3 now (ms), 4 permits, 5 a text for the member that is unique
-- reply 1 permits counted now, 2 permits in the interval, 3 ms until the wanted permits are free (a
--       lower bound; exact if the first 512 records suffice), 4 ms until all permits are free, 5 ms
--       until one permit more is free (as 3)

local PAGE = 512
local limit, interval, now, permits = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local after = '(' .. whole(latest(now, interval)) -- a later record has an invalid time, and might never expire

-- held returns the permits of a record: at least one, and one if the member has no number.
local function held(member)
  return math.max(1, int(string.match(member, '^%d+')) or 1)
end

local used = int(redis.call('HGET', KEYS[1], 'currentRate'))
local stored = used
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', whole(now - interval))
local endless = redis.call('ZCOUNT', KEYS[2], after, '+inf')
local records = redis.call('ZCARD', KEYS[2]) - #expired - endless
if used and endless == 0 then
  for _, member in ipairs(expired) do
    used = used - held(member)
  end
else
  used = nil
end

-- look reads the oldest live records, which determine when permits are free again. If these are all
-- live records, it also sets used to the sum of their permits.
local page = {}
local function look(count)
  page = count > 0 and redis.call('ZRANGE', KEYS[2], #expired, #expired + count - 1, 'WITHSCORES') or {}
  if #page == 2 * records then
    used = 0
    for i = 1, #page, 2 do
      used = used + held(page[i])
    end
  end
end
if not used or used < records then
  look(records)
elseif used + permits > limit then
  look(math.min(records, PAGE))
else
  look(math.min(records, 1))
end

local last = -1 - endless
local newest = records > 0 and tonumber(redis.call('ZRANGE', KEYS[2], last, last, 'WITHSCORES')[2]) or now
local count = taken(permits, limit - used, MOST - used)
if count > 0 then
  local member = whole(count) .. ':' .. ARGV[5]
  local place = #page + 1 -- of the record in the page, if the page reaches that far
  while place > 1 and tonumber(page[place - 1]) > now do
    place = place - 2
  end
  if place <= #page or #page == 2 * records then
    table.insert(page, place, whole(now))
    table.insert(page, place, member)
  end
  used = used + count
  newest = math.max(newest, now)
  redis.call('ZADD', KEYS[2], whole(now), member)
end
if count > 0 or used ~= stored then
  local life = math.max(1, math.ceil(newest + interval - now))
  redis.call('HSET', KEYS[1], 'cursor', whole(tonumber(page[2]) or now), 'currentRate', whole(used))
  redis.call('PEXPIRE', KEYS[1], whole(life))
  redis.call('PEXPIRE', KEYS[2], whole(life))
end
if #expired > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', whole(now - interval))
end
if endless > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], after, '+inf')
end

-- after returns the ms until so many permits are free.
local function after(wanted)
  local wait, free = 0, limit - used
  for i = 1, #page, 2 do
    if free >= wanted then
      break
    end
    free = free + held(page[i])
    wait = tonumber(page[i + 1]) + interval - now
  end
  return math.ceil(wait)
end
return { count, used, after(permits), math.ceil(newest + interval - now), after(math.max(0, limit - used) + 1) }
