-- add.lua writes permits granted at a time, as one record, or as several where four bytes can't hold them. A member that
-- is there already belongs to somebody else, so the next id is tried. The answer is the prefix that was used last.
--@include bytes
local function add(set, prefix, n, at)
  local part = math.min(n, 4294967295)
  local added = call('ZADD', set, 'NX', at, prefix .. bytes(n))
  if added == 1 and part == n then
    return prefix
  end
  --@include after
  return add(set, after(prefix), n - added * part, at)
end
