-- config.lua reads the configuration of a limiter, and trusts no text in it: tonumber alone takes 'nan', 'inf' and '0x10',
-- and not the same ones on every server.
--
-- takes  from, how many keys come before the limiter's; given, the rate of the caller ('rate interval type keep-alive'), or
--        nil if it has none
-- sets   name, value, records (keys), own; rate, interval (ms), keep (ms; 0: none); notes; set, what of the caller's rate
--        HSET must write, else nil; fault, what is wrong, else nil: 1 nothing is set; 2, 3, 4 rate, interval, type is
--        missing; 5, 6, 7 the same can't be used. With a fault the rest means nothing.
local name, notes, set, fault = KEYS[from + 1], 0, nil, nil
local config = call('HMGET', name, 'rate', 'interval', 'type', 'keepAliveTime')
if not (config[1] and config[2] and config[3]) then
  if given then
    set = {}
    local fields, i = { 'rate', 'interval', 'type', 'keepAliveTime' }, 0
    for text in string.gmatch(given, '%d+') do
      i = i + 1
      if not config[i] and not (i == 4 and text == '0') then
        config[i] = text
        set[#set + 1] = fields[i]
        set[#set + 1] = text
      end
    end
  elseif config[1] or config[2] or config[3] then
    fault = config[1] and (config[2] and 4 or 3) or 2
  else
    fault = 1
  end
end
local rates, every, kind, kept = config[1], config[2], config[3], config[4] -- as text
local rate, interval, keep
if not fault then
  if given and given ~= rates .. ' ' .. every .. ' ' .. kind .. ' ' .. (kept or '0') then
    notes = DIFFERS
  end
  if find(rates, '^%d+$') then
    rate = #rates <= 15 and tonumber(rates) or MOST
  end
  if find(every, '^%d+$') and #every <= 15 then
    interval = tonumber(every)
  end
  keep = kept and find(kept, '^%d+$') and #kept <= 15 and tonumber(kept) or 0
  if not rate then
    fault = 5
  elseif not interval or interval < 1 then
    fault = 6
  elseif kind ~= '0' and kind ~= '1' then
    fault = 7
  end
end
--@include choose
