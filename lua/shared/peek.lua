-- peek.lua stands before a script that takes permits, acquire.lua or one of package classic. That
-- script then replies as it would without peek.lua, and changes nothing: reads go to Redis, and
-- writes only get the reply of a success. This is right where a script reads a key before it writes
-- it, as they do, except acquire.lua where it repairs records.
--
-- KEYS  those of the script
-- ARGV  those of the script
-- reply that of the script

local READS = {
  GET = true,
  HGET = true,
  HGETALL = true,
  HMGET = true,
  PTTL = true,
  TIME = true,
  ZCARD = true,
  ZCOUNT = true,
  ZRANGE = true,
  ZRANGEBYSCORE = true,
  ZSCORE = true,
}
-- replies for a key that does not exist; other reads: {}
local ABSENT = { GET = false, PTTL = -2, ZCARD = 0, ZCOUNT = 0 }

local execute, removed = redis.call, {} -- removed: the keys that the script would have removed
local redis = { MAX_EXPIRED = 100000 } -- what is not removed would be out of reach for later calls, too

redis.call = function(command, ...)
  local arguments = { ... }
  local key = arguments[1]
  if READS[command] then
    if not removed[key] then
      return execute(command, ...)
    elseif ABSENT[command] == nil then
      return {}
    end
    return ABSENT[command]
  elseif command == 'INCRBY' then
    return tonumber(execute('GET', key)) + tonumber(arguments[2])
  elseif command == 'ZADD' then
    return math.floor((#arguments - 2) / 2) -- after the key and NX, a score and a member of each record
  elseif command == 'UNLINK' then
    for _, gone in ipairs(arguments) do
      removed[gone] = true
    end
  end
  return 1
end

