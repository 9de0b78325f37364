-- own.lua tells how the members of a client's records start: up to the counter in their ids, or to the share before that
-- (pack.go).
--
-- takes  prefix, the bytes before the permits of one of them
-- sets   mine, what all of them start with
local mine = string.sub(prefix, 1, ({ [4] = 2, [9] = 6, [13] = 6, [16] = 13, [17] = 9, [20] = 13, [21] = 9 })[#prefix])
