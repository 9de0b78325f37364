-- judge.lua tells how many permits are free, and whether what is stored adds up. It is for those who only look.
--
-- takes  rate; stored and counted (stored.lua); all, the number of records; count, that of live ones; expired and used, the
--        permits in expired and in live records
-- sets   free, consistent
local free, consistent
if count == 0 then
  free = rate
  consistent = counted and counted + expired == free or all == 0 and not stored
elseif not counted or counted + expired > rate then
  free, consistent = math.max(0, rate - used), false
else
  free = counted + expired
  consistent = free + used == rate
  if counted < 0 and count <= 256 then
    free = rate - used -- as rebuild.lua has it
  end
end
free = math.max(0, free)
