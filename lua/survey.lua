-- survey.lua reads what is stored of a limiter, and judges nothing: it fails on no state, not even
-- on keys of a wrong type. Records come page by page, from the newest on: those that expire between
-- two pages move none of the others.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 first       record, counted from the newest
--       2 limit       how many
--       3 flags       o the client's pair, whatever the type
-- reply 1 and 2       this server's time (seconds, microseconds)
--       3 fields      and values of the configuration
--       4 own         1 if the pair is the client's own
--       5 text        the free permits as they are stored
--       6 count       records
--       7 page        of them: members and scores
--       then of configuration, value and records: type, and TTL (ms; below 0: none)

--@include base
--@include config
local first, limit, own = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == 'o'
local time = call('TIME')

local function type_of(key)
  return call('TYPE', key).ok
end

local fields = type_of(KEYS[1]) == 'hash' and call('HGETALL', KEYS[1]) or {}
for i = 1, #fields, 2 do
  own = own or fields[i] == 'type' and fields[i + 1] == '1'
end
local value, records = choose_keys(0, own and '1' or '0')
local text = type_of(value) == 'string' and call('GET', value) or ''
local count, page = 0, {}
if type_of(records) == 'zset' then
  count = call('ZCARD', records)
  page = call('ZREVRANGE', records, first, first + limit - 1, 'WITHSCORES')
end
local reply = { time[1], time[2], fields, own and 1 or 0, text, count, page }
for _, key in ipairs({ KEYS[1], value, records }) do
  reply[#reply + 1] = type_of(key)
  reply[#reply + 1] = call('PTTL', key)
end
return reply
