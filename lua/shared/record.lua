-- record.lua: the members of a permits set. A record ends in its permits, as four bytes, least significant first; the bytes
-- before them are its prefix: a format byte or more, and an id. internal/record describes the formats.

-- permits_of returns the permits of a member: 0 if it is too short to be a record.
local function permits_of(member)
  local a, b, c, d = string.byte(member, -4, -1)
  if d == nil then
    return 0
  end
  return a + b * 256 + c * 65536 + d * 16777216
end

-- sum_permits returns the permits of members.
local function sum_permits(members)
  local sum = 0
  for i = 1, #members do
    sum = sum + permits_of(members[i])
  end
  return sum
end

-- client_prefix returns the part of a prefix that all records of its client begin with.
local function client_prefix(prefix)
  return string.sub(prefix, 1, ({ [4] = 2, [9] = 6, [13] = 6, [16] = 13, [17] = 9, [20] = 13, [21] = 9 })[#prefix])
end
