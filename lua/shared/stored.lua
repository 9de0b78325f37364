-- stored.lua reads the free permits as they are stored, in the form that INCRBY takes and no other. They are negative
-- while more is granted than a rate that was lowered since.
--
-- takes  value
-- sets   stored, the text; counted, the number, or nil where the text is none
local stored = call('GET', value)
local counted
if stored and find(stored, '^-?[1-9]%d*$') then
  counted = #stored <= 15 and tonumber(stored) or stored == '1000000000000000' and MOST or nil
elseif stored == '0' then
  counted = 0
end
