-- sub_windows.lua counts permits by sub-windows of equal length.
--
-- KEYS  1 hash: number of the sub-window -> permits
-- ARGV  1 limit, 2 length of a sub-window (ms), 3 sub-windows, 4 now (ms), 5 permits
-- reply 1 permits in the live sub-windows, or -1 if over the limit, 2 permits in the live
--       sub-windows, 3 ms until the wanted permits are free, 4 ms until all permits are free, 5 ms
--       until the next permit returns

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
table.sort(numbers)

local over = used + permits > limit
local wait, free = 0, limit - used
if over then
  for _, number in ipairs(numbers) do
    if free >= permits then
      break
    end
    free = free + counts[number]
    wait = (number + parts) * length - now
  end
else
  used = used + permits
  local count = whole((counts[current] or 0) + permits)
  redis.call('HSET', KEYS[1], whole(current), count)
  redis.call('PEXPIRE', KEYS[1], whole(length * parts))
end
for _, field in ipairs(gone) do
  if over or field ~= whole(current) then -- else HSET has overwritten it
    redis.call('HDEL', KEYS[1], field)
  end
end
local oldest, newest = numbers[1] or current, math.max(numbers[#numbers] or current, over and 0 or current)
if not over then
  oldest = math.min(oldest, current)
end
return { over and -1 or used, used, wait, (newest + parts) * length - now, (oldest + parts) * length - now }
