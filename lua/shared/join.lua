-- join.lua looks for this client's record of a bucket, which a larger one can replace.
--
-- takes  records; at, where the bucket ends; prefix; taken, the permits to write
-- sets   joined, the member to replace, and held, its permits, if there is one
--
-- It looks at so many records of the bucket: with more clients than that, some write more records than one.
local LOOKED = 512
--@include own
--@include permits
local bucket = call('ZRANGEBYSCORE', records, at, at, 'LIMIT', '0', LOOKED)
for i = 1, #bucket do
  local member = bucket[i]
  if #member == #prefix + 4 and string.sub(member, 1, #mine) == mine and permits(member) + taken <= 4294967295 then
    joined, held = member, permits(member)
    break
  end
end
