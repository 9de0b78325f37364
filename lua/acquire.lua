-- acquire.lua grants permits to the callers of one call. With no caller it counts expired permits back and tells what is
-- free, as Redisson's availablePermits does.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 now (ms; '': this server's clock), 2 the record of all that is asked for, 3 how many permits that is ('': one
--       record can't tell, or somebody is to get nothing), 4 groups of callers in order, "SIZExCOUNT SIZExCOUNT! ...", the
--       strict ones first and marked; '': only look, 5 flags, [6 the caller's rate ("rate interval type keep-alive"; '': it
--       has none), [7 granularity (ms; 0: none), [8 the time of an earlier attempt of the same call (ms), or one before it,
--       which is looked for first, 9 how many ids are the call's own, 10 the last three bytes of the ids under which the
--       client has had grants before, as numbers between blanks]]]
--       flags: r a record for each grant, u grant a part of the (only) size rather than nothing, d tell when permits will
--       be free, e report another rate in force, where else the caller's is set where none is, b finish a rebuild, q the
--       queue goes on behind the strict groups, so nobody but these gets anything, j join no record of another call
-- reply 1 status (0, 1 to 7 not initialised: config.lua, 8 another rate is in force, 9 what an earlier attempt was granted
--       can't be told any more), then with status 0:
--       2 rate, 3 interval (ms), 4 permits free after all; no more if all is granted and there is nothing else to tell,
--       5 notes (names.lua), 6 now (ms), 7 ms until all permits are free (0 unless granted or asked for); no more if all
--       is granted,
--       8 whose record lives (origin.lua): another Go client's if one was met, else the oldest one's; -2 without a record,
--       then two a group: how many of it are granted (-1: its size exceeds the rate; with u: permits granted), and ms until
--       the permits of its first refused caller are free (with d, or where a group is strict; else 0)
--
-- A strict group's callers wait in line: when one is refused, nobody behind gets anything. Behind the strict groups each
-- group takes what it can.
--
-- The script reads top to bottom, without functions and tables where all that is asked for is granted: these cost Redis
-- more than what they do. What a refusal needs stands in the branch of the refusal. The calls to Redis of a grant with
-- nothing expired, none of which can be spared:
--   HMGET   the configuration, which anybody may change at any time
--   GET     the free permits, which must be checked before they are counted with
--   ZRANGE  the oldest record: has anything expired, is there any record
--   PTTL    the life time to pass on to the state; not with a keep-alive
--   ZADD    the record: the first write, which a full server refuses
--   INCRBY  the free permits
-- Expired records cost ZRANGEBYSCORE (their permits), ZRANGE (who is oldest then) and ZREMRANGEBYRANK; a life time
-- PEXPIRE of both keys; a granularity ZRANGEBYSCORE (this client's record of the bucket) and ZREM of it; a refusal ZCARD and
-- ZRANGE of the records that it adds up or walks; a look for an earlier attempt what seek.lua and redate.lua say.

--@include names
local from, asked, flags, given, granularity = 0, ARGV[1], ARGV[5], ARGV[6], ARGV[7]
if given == '' then
  given = nil
end
--@include config
if fault or notes == DIFFERS then
  local enforced = find(flags, 'e', 1, true)
  if fault or enforced then
    return { enforced and 8 or fault }
  end
end
if ARGV[4] == '' and not set then
  keep = 0 -- who only looks keeps nothing alive
end
--@include clock
local rebuild = flags ~= '' and find(flags, 'b', 1, true)
local at = now -- the score of what is granted
--@include bucket
local found
if ARGV[9] then
  --@include look
end
--@include settle

-- Decide.
local wanted = tonumber(ARGV[3])
local left, lasts, groups, origin
if found and found == wanted then
  left = free
elseif wanted and wanted <= free and not found then
  left = free - wanted
else
  --@include divide
end
local taken = free - left
if taken > 0 or found then
  lasts = lasts or at + interval - now
end
local joined, held = nil, 0
if bucketed and taken > 0 and not find(flags, 'j', 1, true) then
  local prefix = string.sub(ARGV[2], 1, -5)
  --@include join
end

-- Write.
if set then
  call('HSET', name, unpack(set))
end
if taken > 0 then
  local score = at == now and asked ~= '' and asked or at -- a text costs Redis less than a number
  if groups and find(flags, 'r', 1, true) and not find(flags, 'u', 1, true) then
    --@include each
  elseif joined or taken ~= wanted or call('ZADD', records, 'NX', score, ARGV[2]) == 0 then
    if not joined and taken == wanted and asked ~= '' and tonumber(call('ZSCORE', records, ARGV[2])) >= at then
      return { 9 } -- a later attempt of this call was served before this one, which nobody waits for any more
    end
    --@include add
    local prefix = string.sub(ARGV[2], 1, -5)
    if granularity then
      --@include share
    end
    add(records, prefix, taken + held, at)
    if joined then
      call('ZREM', records, joined)
    end
  end
end
free = left
--@include save
--@include renew

if notes == 0 and not groups and asked ~= '' then
  return { 0, rate, interval, free }
end
local answer = { 0, rate, interval, math.max(0, free), notes, now, lasts or 0, origin }
if groups then
  for i = 1, #groups do
    answer[7 + 2 * i] = groups[i].given
    answer[8 + 2 * i] = groups[i].wait
  end
end
return answer
