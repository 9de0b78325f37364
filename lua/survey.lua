-- survey.lua reads what is stored of a limiter, and judges nothing: so it fails on no state, not even on keys of a wrong
-- type. Records come page by page, from the newest on: so those that expire between two pages move none of the others.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 first record, counted from the newest, 2 how many, 3 flags: o the client's pair, whatever the type
-- reply 1 and 2 this server's time (seconds, microseconds), 3 fields and values of the configuration, 4 1 if the pair is
--       the client's own, 5 the free permits as they are stored, 6 number of records, 7 a page of them: members and
--       scores, then for configuration, value and records: type and life time (ms; below 0: none)

local call = redis.call
local time = call('TIME')
local function typed(key)
  return call('TYPE', key).ok
end

local fields = typed(KEYS[1]) == 'hash' and call('HGETALL', KEYS[1]) or {}
local from, kind = 0, ARGV[3] == 'o' and '1' or nil
for i = 1, #fields, 2 do
  if fields[i] == 'type' then
    kind = kind or fields[i + 1]
  end
end
--@include choose
local text = typed(value) == 'string' and call('GET', value) or ''
local number, page = 0, {}
if typed(records) == 'zset' then
  number = call('ZCARD', records)
  page = call('ZREVRANGE', records, ARGV[1], ARGV[1] + ARGV[2] - 1, 'WITHSCORES')
end
local answer = { time[1], time[2], fields, own and 1 or 0, text, number, page }
for _, key in ipairs({ KEYS[1], value, records }) do
  answer[#answer + 1] = typed(key)
  answer[#answer + 1] = call('PTTL', key)
end
return answer
