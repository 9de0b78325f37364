-- rebuild.lua computes the free permits anew from the records, where what is stored can't be right, and notes why. It is
-- part of settle.lua.
--
-- takes  what settle.lua has found out, with free as it is stored
-- sets   free, more, notes
--
-- While more expired records remain than leave in one call, nothing is free: the call that removes the last of them
-- rebuilds. Free permits are below 0 while more is granted than a rate that was lowered since: that is checked where the
-- records are few.
local why
if not stored then
  why = MISSING
elseif not free then
  why = find(stored, '^%-%d+$') and NEGATIVE or GARBLED
elseif free > rate then
  why = ABOVE
elseif not oldest then
  why = free + back ~= rate and EMPTY or 0
elseif free < 0 and free + back <= rate and not rebuild then
  why = NEGATIVE
else
  why = DRIFTED
end
if not oldest then
  -- Without a record all is free. A limiter that nobody has used yet has neither record nor value.
  if stored or dead > 0 then
    notes = notes + why
  end
  free, more = rate, false
elseif free and why == NEGATIVE and call('ZCARD', records) - dead > 256 then
  free = free + back
elseif more then
  free, notes = 0, notes + why + UNBUILT
else
  local PAGE = 5000 -- records read at a time
  local left, rank = rate, dead
  --@include permits
  repeat
    local page = call('ZRANGE', records, rank, rank + PAGE - 1)
    for i = 1, #page do
      left = left - permits(page[i])
    end
    rank = rank + PAGE
  until #page < PAGE
  if not free or why ~= NEGATIVE or left ~= free + back then
    notes = notes + why
  end
  free = left
end
