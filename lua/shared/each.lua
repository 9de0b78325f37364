-- each.lua writes a record for each caller who is granted something. It is part of acquire.lua.
--
-- takes  records, at, groups
--@include add
--@include after
local prefix = string.sub(ARGV[2], 1, -5)
for _, group in ipairs(groups) do
  for _ = 1, group.given do
    prefix = after(add(records, prefix, group.size, at))
  end
end
