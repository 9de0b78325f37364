-- acquiremany.lua grants permits to the batches of several limiters, each for itself, by plain grants (plain_read.lua). What is
-- no plain grant, is asked of a limiter without a configuration, or is asked of a limiter for the second time, has no effect,
-- and the client asks for it by acquire.lua. Nor has an error any effect: all limiters are read before one is written.
--
-- KEYS  five a limiter: config, value, client value, permits, client permits
-- ARGV  1 now (ms, up to three decimals), then four a limiter: permits, the record that holds them, the caller's rate ("rate
--       interval type keep-alive"; '': none), flags (of plain_read.lua)
-- reply four a limiter: status (0; 10 no plain grant), rate, interval (ms), permits free afterwards

--@include base
local most_expired = 128 -- records of one limiter; more would take the call too long
local now_text, now = ARGV[1], tonumber(ARGV[1])
local last = #KEYS / 5 - 1
local read, reply = {}, {} -- read[i]: of limiter i, from 0, if its state allows a plain grant
local seen = {} -- records keys: what is read of a limiter is wrong after a grant of the same limiter
for i = 0, last do
  local key, at = 5 * i, 4 * i
  if not seen[KEYS[key + 4]] then
    seen[KEYS[key + 4]] = true
    local configured_rate, flags = ARGV[at + 4] ~= '' and ARGV[at + 4], ARGV[at + 5]
    --@include plain_read
    if free and not new then
      read[i] = { rate, interval, free, counted, expired_count, ttl, score_text }
    end
  end
end
for i = 0, last do
  local at, value, records = 4 * i, KEYS[5 * i + 2], KEYS[5 * i + 4]
  local status, rate, interval, left = 10, 0, 0, 0
  if read[i] then
    local free, counted, expired_count, ttl, score_text
    rate, interval, free, counted, expired_count, ttl, score_text = unpack(read[i])
    left = free - tonumber(ARGV[at + 2])
    if left >= 0 and call('ZADD', records, 'NX', score_text, ARGV[at + 3]) == 1 then
      status = 0
      --@include plain_write
    end
  end
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = status, rate, interval, left
end
return reply
