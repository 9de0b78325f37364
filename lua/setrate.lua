-- setrate.lua sets the rate of a limiter whatever it was, as Redisson's setRate and updateRate do. Its grants are
-- forgotten, or kept and counted against the new rate.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 now (ms; '': this server's clock), 2 rate, 3 interval (ms), 4 type, 5 keep-alive (ms; 0: none),
--       6 flags: k keep the grants (those of the same type), u only where a rate is set
-- reply 1 if it was set, else 0; 2 notes (names.lua)

--@include names
local from, name, kind = 0, KEYS[1], ARGV[4]
local config = call('HMGET', name, 'rate', 'type', 'keepAliveTime')
if not config[1] and find(ARGV[6], 'u', 1, true) then
  return { 0, 0 }
end
local rate, interval, keep = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5])
local notes, life = 0, keep == 0 and call('PTTL', name) or -1
--@include choose
local function write()
  call('HSET', name, 'rate', ARGV[2], 'interval', ARGV[3], 'type', kind)
  if keep > 0 or config[3] then
    call('HSET', name, 'keepAliveTime', ARGV[5])
  end
end

if find(ARGV[6], 'k', 1, true) and (not config[2] or config[2] == kind) then
  local asked, rebuild = ARGV[1], true
  --@include clock
  --@include settle
  notes = more and UNBUILT or 0 -- the rate is new, so nothing was wrong
  write()
  --@include save
else
  write()
  if config[2] == kind then
    call('DEL', value, records)
  else
    call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
  end
end
if keep == 0 and config[3] and #config[3] <= 15 and find(config[3], '^%d*[1-9]%d*$') then
  -- What kept the limiter alive is gone, so its time must not run out.
  life = -1
  call('PERSIST', name)
  call('PERSIST', value)
  call('PERSIST', records)
end
--@include renew
return { 1, notes }
