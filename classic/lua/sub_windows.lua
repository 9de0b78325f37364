-- sub_windows.lua counts permits by sub-windows of equal length.
--
-- KEYS  1 hash: number of the sub-window -> permits
-- ARGV  1 limit, 2 length of a sub-window (ms), 3 sub-windows, 4 now (ms), 5 permits
-- reply 1 permits counted now, 2 permits in the live sub-windows, 3 ms until the wanted permits are
--       free, 4 ms until all permits are free, 5 ms until one permit more is free

local limit, length, parts = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now, permits = tonumber(ARGV[4]), tonumber(ARGV[5])
local current = math.floor(now / length)

local stored = redis.call('HGETALL', KEYS[1])
local gone, numbers, counts, used = {}, {}, {}, 0
for i = 1, #stored, 2 do
  local number, count = int(stored[i]), int(stored[i + 1])
  if number and count and count > 0 and number > current - parts and number <= current + parts then
    numbers[#numbers + 1] = number
    counts[number] = count
    used = used + count
  else
    gone[#gone + 1] = stored[i]
  end
end

local count = taken(permits, limit - used, MOST - used)
if count > 0 then
  used = used + count
  if not counts[current] then
    numbers[#numbers + 1] = current
  end
  counts[current] = (counts[current] or 0) + count
  redis.call('HSET', KEYS[1], whole(current), whole(counts[current]))
  redis.call('PEXPIRE', KEYS[1], whole(length * parts))
end
for _, field in ipairs(gone) do
  if count == 0 or field ~= whole(current) then -- else HSET has overwritten it
    redis.call('HDEL', KEYS[1], field)
  end
end
table.sort(numbers)

-- after returns the ms until so many permits are free.
local function after(wanted)
  local wait, free = 0, limit - used
  for _, number in ipairs(numbers) do
    if free >= wanted then
      break
    end
    free = free + counts[number]
    wait = (number + parts) * length - now
  end
  return wait
end
local all = ((numbers[#numbers] or current) + parts) * length - now
return { count, used, after(permits), all, after(math.max(0, limit - used) + 1) }
