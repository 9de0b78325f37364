-- allowall.lua asks several limiters for the same caller: all of them grant, or none does.
--
-- KEYS  five a limiter: config, value, client value, permits, client permits
-- ARGV  six a limiter: permits, now (ms; '': this server's clock), bytes of a record before its permits, flags (e report
--       another rate in force, where else the caller's is set where none is, b finish a rebuild), the caller's rate
--       ("rate interval type keep-alive"; '': it has none), granularity (ms; 0: none); then, where an earlier attempt of the
--       same call is looked for, one a limiter: the time of that (ms), or one before it
-- reply 1 status (0; else as in acquire.lua, of the limiter numbered by 2, from 0), then with status 0 eight a limiter:
--       1 granted if all grant (1 yes, 0 no, -1 more than its rate), now (ms), rate, interval (ms), permits free after
--       all, notes (names.lua), ms until the permits are free, ms until all are free

--@include names

--@include lookall

-- Each limiter is read and decided on; what then remains to do is a function of it, called once all are decided on.
local all, answer, finishers = true, { 0 }, {}
for i = 0, #KEYS / 5 - 1 do
  local from = 5 * i
  local wanted, asked, prefix, flags = tonumber(ARGV[6 * i + 1]), ARGV[6 * i + 2], ARGV[6 * i + 3], ARGV[6 * i + 4]
  local given, granularity = ARGV[6 * i + 5], ARGV[6 * i + 6]
  given = given ~= '' and given or nil
  local enforced, rebuild = find(flags, 'e', 1, true), find(flags, 'b', 1, true)
  --@include config
  if fault or enforced and notes == DIFFERS and not found then
    return { enforced and 8 or fault, i }
  end
  --@include clock
  --@include settle
  local at, taken = now, wanted
  --@include bucket
  local joined, held = nil, 0
  if bucketed and not found then
    --@include join
  end

  local granted, waits, lasts = 1, 0, at + interval - now
  if wanted > rate and not found then
    granted, lasts = -1, 0
  elseif wanted > free and not found then
    granted, lasts = 0, 0
    if not more then
      --@include refusal
      if wanted <= free then
        granted, lasts = 1, at + interval - now
      else
        waits, lasts = wait(wanted, free, 0), lasting(0)
      end
    end
  end
  all = all and granted == 1

  finishers[i + 1] = function(write)
    if not write then
      -- Who would have granted took nothing, either.
      if not all and granted == 1 and not more then
        --@include refusal
        lasts = lasting(0)
      end
      return
    end
    if set then
      call('HSET', name, unpack(set))
    end
    if all and not found then
      --@include add
      add(records, prefix, wanted + held, at)
      if joined then
        call('ZREM', records, joined)
      end
      free = free - wanted
    end
    --@include save
    --@include renew
    for _, figure in ipairs({ granted, now, rate, interval, math.max(0, free), notes, waits, lasts }) do
      answer[#answer + 1] = figure
    end
  end
end

for _, write in ipairs({ false, true }) do
  for _, finish in ipairs(finishers) do
    finish(write)
  end
end
return answer
