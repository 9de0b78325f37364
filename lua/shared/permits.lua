-- permits.lua reads the permits of a member of a permits set. Every format ends in them, as four bytes, least significant
-- first. A member too short to be a record holds none.
local function permits(member)
  local a, b, c, d = string.byte(member, -4, -1)
  if d == nil then
    return 0
  end
  return a + b * 256 + c * 65536 + d * 16777216
end
