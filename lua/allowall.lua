-- allowall.lua asks several limiters for the same caller: all of them grant, or none does.
--
-- KEYS  five a limiter: config, value, client value, permits, client permits
-- ARGV  eight a limiter: permits, now (ms; '': this server's clock), record prefix, flags (w set the rate where none is,
--       e the same and report another rate in force, b finish a rebuild), rate, interval (ms), type, keep-alive (ms)
-- reply 1 status (0; else as in acquire.lua, of the limiter numbered by 2, from 0), then with status 0 eight a limiter:
--       1 granted if all grant (1 yes, 0 no, -1 more than its rate), now (ms), rate, interval (ms), permits free after
--       all, notes (open.lua), ms until the permits are free, ms until all are free

--@include numbers
--@include permits
--@include clock
--@include config
--@include open
--@include refusal
--@include add
--@include close

local limiters, all = {}, true
for i = 0, #KEYS / 5 - 1 do
  local from = 8 * i
  local flags = ARGV[from + 4]
  local enforced = string.find(flags, 'e', 1, true)
  local given = (enforced or string.find(flags, 'w', 1, true)) and from + 5
  local limiter, fault = configured(i * 5, given)
  if not limiter then
    return { enforced and 8 or fault, i }
  elseif enforced and limiter.notes == DIFFERS then
    return { 8, i }
  end
  limiter.wanted, limiter.prefix = tonumber(ARGV[from + 1]), ARGV[from + 3]
  settle(limiter, clock(ARGV[from + 2]), string.find(flags, 'b', 1, true) ~= nil)
  limiter.granted, limiter.wait, limiter.lasts = 1, 0, limiter.interval
  if limiter.wanted > limiter.rate then
    limiter.granted, limiter.lasts = -1, 0
  elseif limiter.wanted > limiter.free then
    limiter.granted, limiter.lasts = 0, 0
    if not limiter.more then
      if looked(limiter) and limiter.wanted <= limiter.free then
        limiter.granted, limiter.lasts = 1, limiter.interval
      else
        limiter.wait, limiter.lasts = wait(limiter, limiter.free, limiter.wanted), lasting(limiter)
      end
    end
  end
  all = all and limiter.granted == 1
  limiters[i + 1] = limiter
end

if not all then
  -- Who would have granted took nothing, either.
  for _, limiter in ipairs(limiters) do
    if limiter.granted == 1 and not limiter.more then
      looked(limiter)
      limiter.lasts = lasting(limiter)
    end
  end
end

local answer = { 0 }
for _, limiter in ipairs(limiters) do
  if limiter.set then
    redis.call('HSET', limiter.name, unpack(limiter.set))
  end
  if all then
    add(limiter.records, limiter.prefix, limiter.wanted, limiter.now)
    limiter.free = limiter.free - limiter.wanted
  end
  save(limiter)
  renew(limiter)
  for _, figure in ipairs({
    limiter.granted, limiter.now, limiter.rate, limiter.interval, math.max(0, limiter.free), limiter.notes,
    limiter.wait, limiter.lasts,
  }) do
    answer[#answer + 1] = figure
  end
end
return answer
