-- acquiremany.lua grants permits to the batches of several limiters, each for itself, by plain grants (plain.lua). What is no
-- plain grant has no effect, and the client asks for it by acquire.lua. Nor has an error any effect.
--
-- KEYS  five a limiter: config, value, client value, permits, client permits
-- ARGV  1 now (ms, up to three decimals), then four a limiter: permits, the record that holds them, the caller's rate ("rate
--       interval type keep-alive"; '': none), flags (of plain.lua)
-- reply four a limiter: status (0; 10 no plain grant), rate, interval (ms), permits free afterwards

--@include base
--@include plain
local MOST = 128 -- expired records of a limiter: a call must not take long
local now_text, now = ARGV[1], tonumber(ARGV[1])
local last = #KEYS / 5 - 1
local read, reply = {}, {}
local seen = {} -- records keys: what is read of a limiter is wrong after a grant of the same limiter
for i = 0, last do
  local at, records = 4 * i, KEYS[5 * i + 4]
  if not seen[records] then
    seen[records] = true
    read_plain(read, i, ARGV[at + 4], ARGV[at + 5], now, now_text, MOST)
  end
end
for i = 0, last do
  local figure, at = FIGURES * i, 4 * i
  local status, left = 10, 0
  local free = read[figure + FREE] -- nil: its state allows no plain grant
  if free and not read[figure + NEW] then
    left = free - tonumber(ARGV[at + 2])
    if left >= 0 and call('ZADD', KEYS[5 * i + 4], 'NX', read[figure + SCORE], ARGV[at + 3]) == 1 then
      status = 0
      write_plain(read, i, left)
    end
  end
  local rate, interval = read[figure + RATE] or 0, read[figure + INTERVAL] or 0
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = status, rate, interval, left
end
return reply
