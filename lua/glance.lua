-- glance.lua looks at a limiter as state.lua does, but reads few records, however many there are, so that it can be asked
-- of thousands of limiters.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 now (ms; '': this server's clock)
-- reply as state.lua, then 13 1 if 6, 7 and 12 are estimates: the records are too many, and the free permits are believed

--@include names
local from, asked, given = 0, ARGV[1], nil
--@include config
if fault then
  return { fault }
end
--@include clock
--@include stored
--@include permits

-- How many records are read, of the live and of the expired ones.
local READ = 2000

local all, dead = call('ZCARD', records), call('ZCOUNT', records, '-inf', now - interval)
local count = all - dead

-- sum adds up the permits of records by rank; nil where they are too many.
local function sum(first, n)
  if n > READ then
    return nil
  end
  local total = 0
  if n > 0 then
    local page = call('ZRANGE', records, first, first + n - 1)
    for i = 1, #page do
      total = total + permits(page[i])
    end
  end
  return total
end

local function score(rank)
  return count > 0 and math.min(tonumber(call('ZRANGE', records, rank, rank, 'WITHSCORES')[2]), MOST) or 0
end

local used, expired = sum(dead, count), sum(0, dead)
local estimated = not (used and expired)
if not used then
  used = counted and math.max(0, rate - math.max(0, counted) - (expired or 0)) or rate
end
if not expired then
  expired = counted and rate - used - counted or 0
end
--@include judge
local life = call('PTTL', name)
return {
  0, rate, interval, own and 1 or 0, keep, free, used, count, score(dead), score(-1), life, consistent and 1 or 0,
  estimated and 1 or 0,
}
