-- take.lua reads a limiter and changes nothing.
--
-- KEYS  1 config, then two for each state: value, permits
-- ARGV  1 maximum number of records of all states together that are read
-- reply 1 and 2 this server's time (seconds, microseconds), 3 1 if records were read, 0 if there
--       are too many, then three for each key: its type, its TTL (ms; -1: none), its content:
--       fields and values, text, or members and scores

local time = redis.call('TIME')
local types, records = {}, 0
for i, key in ipairs(KEYS) do
  types[i] = redis.call('TYPE', key).ok
  if types[i] == 'zset' then
    records = records + redis.call('ZCARD', key)
  end
end
local few = records <= tonumber(ARGV[1])

local answer = { time[1], time[2], few and 1 or 0 }
for i, key in ipairs(KEYS) do
  local content = ''
  if types[i] == 'hash' then
    content = redis.call('HGETALL', key)
  elseif types[i] == 'string' then
    content = redis.call('GET', key)
  elseif types[i] == 'zset' and few then
    content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  end
  answer[#answer + 1] = types[i]
  answer[#answer + 1] = redis.call('PTTL', key)
  answer[#answer + 1] = content
end
return answer
