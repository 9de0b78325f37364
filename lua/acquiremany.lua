-- acquiremany.lua grants permits to several calls, each for itself, by plain grants
-- (plain_read.lua). A call asks one limiter, or several of which all grant or none does. A call has
-- no effect if it needs more than plain grants, or if an earlier call asks one of its limiters,
-- too: the client then makes it by acquire.lua or allowall.lua. All limiters are read before one is
-- written, so a key of another type has no effect on any of them.
--
-- KEYS  three a limiter: config, value, permits
-- ARGV  1 client_now       ms, up to three decimals
--       then four a limiter:
--         wanted           permits
--         record           that holds them
--         configured_rate  the caller's rate, "rate interval type keep-alive"; '': none
--         flags            CHECK, WHOLE_SCORES, NEXT, JOINT
-- reply five a limiter:
--         status           of the call, with its first limiter: 0; or it has no effect: 10 it is no
--                          plain grant; 11 it is none now, because too few permits are free, or
--                          many records have expired
--         rate
--         interval         ms
--         free             permits afterwards
--         next             us until the next permit returns (0: as in acquire.lua)

--@include base
--@include flags
local most_expired = 128 -- records of one limiter; more would take the call too long
local now_text, now = ARGV[1], tonumber(ARGV[1])
local whole_text = string.format('%.0f', math.ceil(now))
local reply, read = {}, {} -- read: seven a limiter, for the writes
local granted = {} -- the first and the last limiter, from 0, of each call that all its limiters can grant
local seen = {} -- records keys: what is read of a limiter is wrong after a grant of the same limiter
local first, status = 0, 0 -- of the call so far: its first limiter, and the status
for i = 0, #KEYS / 3 - 1 do
  local name, value, records, at = KEYS[3 * i + 1], KEYS[3 * i + 2], KEYS[3 * i + 3], 4 * i
  local configured_rate, flags = ARGV[at + 4] ~= '' and ARGV[at + 4], ARGV[at + 5]
  local wanted, own, kept = tonumber(ARGV[at + 2]), 5 * i, 7 * i
  local telling = flags ~= '' and find(flags, NEXT, 1, true) and wanted
  --@include plain_read
  if expired_count and expired_count >= most_expired then
    status = status == 0 and 11 or status -- the client's own script removes them
  elseif not free or seen[records] then
    free, status = nil, 10
  elseif free < wanted and status == 0 then
    status = 11
  end
  seen[records] = true
  reply[own + 1], reply[own + 2], reply[own + 3], reply[own + 4], reply[own + 5] =
    status, free and rate or 0, free and interval or 0, free and free - wanted or 0, next_us or 0
  read[kept + 1], read[kept + 2], read[kept + 3], read[kept + 4], read[kept + 5], read[kept + 6], read[kept + 7] =
    score_text, counted, expired_count, expired_permits, ttl, new, keep_alive
  if flags == '' or not find(flags, JOINT, 1, true) then
    if status == 0 then
      granted[#granted + 1], granted[#granted + 2] = first, i
    else
      reply[5 * first + 1] = status
    end
    first, status = i + 1, 0
  end
end
for call_at = 1, #granted, 2 do
  for i = granted[call_at], granted[call_at + 1] do
    local name, value, records, n, at = KEYS[3 * i + 1], KEYS[3 * i + 2], KEYS[3 * i + 3], 5 * i, 4 * i
    local score_text, counted, expired_count, expired_permits, ttl, new, keep_alive = unpack(read, 7 * i + 1, 7 * i + 7)
    local taken, record, left = ARGV[at + 2], ARGV[at + 3], reply[n + 4]
    if new then
      call('HSET', name, unpack(new))
    end
    if call('ZADD', records, 'NX', score_text, record) == 0 then
      if i == granted[call_at] then
        reply[n + 1] = 10
        break -- nothing is written yet
      end
      --@include record
      --@include grant
      add_record(records, next_prefix(string.sub(record, 1, -5)), tonumber(taken), score_text)
    end
    --@include plain_write
  end
end
return reply
