-- bucket.lua dates what is granted at the end of a bucket of time, where the caller wants that: permits return up to the
-- length of a bucket late, and one record can stand for all that a client is granted within one.
--
-- takes  now, interval; at, the score of what is granted; granularity, the length of a bucket in ms as text, or nil
-- sets   at; bucketed
local bucketed = false
if granularity then
  local length = math.min(tonumber(granularity), math.floor(interval / 10))
  if length > 1 then
    bucketed, at = true, math.ceil(now / length) * length
  end
end
