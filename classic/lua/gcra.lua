-- gcra.lua advances the theoretical arrival time (TAT) as far as the burst allows.
--
-- KEYS  1 TAT (s since 2017)
-- ARGV  1 burst, 2 permits per period, 3 period (s), 4 permits wanted, 5 now (s since 1970; '':
--       this server's clock)
-- reply 1 permits counted, 2 permits left, rounded down, 3 s until the wanted permits are
--       free (text), 4 s until all permits are free (text)
--
-- The arithmetic has the same order as in redis_rate, because the order determines the last digits.
-- redis_rate lets the server format a TAT; the embedded server writes an exponent, so this script
-- reads exponents.

local EPOCH = 1483228800
local burst, rate, period, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now
if ARGV[5] == '' then
  local time = redis.call('TIME')
  now = (tonumber(time[1]) - EPOCH) + tonumber(time[2]) / 1000000
else
  local seconds, micros = string.match(ARGV[5], '^(%d+)%.(%d+)$')
  now = (tonumber(seconds) - EPOCH) + tonumber(micros) / 1000000
end
local each = period / rate

local tat = float(redis.call('GET', KEYS[1]))
if not tat or tat < now or tat > now + math.max(60, TIMES * (1 + DEBT) * each * burst) then
  tat = now
end
local moved = tat + each * wanted
local room = now - (moved - each * burst)
if room / each < 0 then
  if not CHARGE then
    return { 0, 0, tostring(-room), tostring(tat - now) }
  end
  wanted = taken(wanted, 0, (now - tat) / each + (1 + DEBT) * burst)
  moved = tat + each * wanted
  room = now - (moved - each * burst)
end
local reset = moved - now
if reset > 0 then
  local life = math.min(1e9, math.ceil(reset)) -- 1e9 s is the longest TTL
  redis.call('SET', KEYS[1], string.format('%.17g', moved), 'EX', whole(life))
end
return { wanted, math.floor(room / each), '0', tostring(reset) }
