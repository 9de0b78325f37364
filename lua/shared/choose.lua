-- choose.lua picks the keys of a limiter by its type: '0' has one state for all clients, '1' one for each.
--
-- takes  from, how many keys come before the limiter's; kind, its type
-- sets   own, whether the state is this client's own; value and records, its keys
local own = kind == '1'
local value, records = KEYS[from + (own and 3 or 2)], KEYS[from + (own and 5 or 4)]
