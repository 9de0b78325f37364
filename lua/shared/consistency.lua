-- consistency.lua: what a reader that changes nothing makes of a state.

-- check_consistency returns the free permits as a reader sees them, and whether value and records add up to the rate. all
-- and count are the numbers of records and of live ones; expired and used the permits in expired and in live records.
local function check_consistency(rate, stored, counted, all, count, expired, used)
  if count == 0 then
    return rate, counted and counted + expired == rate or all == 0 and not stored
  elseif not counted or counted + expired > rate then
    return math.max(0, rate - used), false
  end
  local believed = counted < 0 and 0 or counted + expired -- acquiring goes by the records if the value is negative
  return math.max(0, believed, rate - used), counted + expired + used == rate
end
