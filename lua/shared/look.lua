-- look.lua finds out what an earlier attempt of the same call was granted, and dates that anew: it must not be older than
-- the answer. It is part of acquire.lua.
--
-- takes  records, value; at; ARGV 2, 3, 8 to 10; granularity
-- sets   found, the permits that were granted; nil if there are none
--
-- Nothing that is read later can fail once a record is dated anew: all keys have been read by then.
local prefix, first, ids, before = string.sub(ARGV[2], 1, -5), tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10]
if granularity == '0' then
  granularity = nil
end
local shared = granularity ~= nil
local whole = ARGV[3] ~= '' and not shared and ARGV[2] or nil
call('GET', value)
--@include seek
if not sought then
  return { 9 }
end
--@include redate
if #sought > 0 then
  found = share
end
