-- redate.lua dates records anew, where that is later.
--
-- takes  records; sought, members; at
for i = 1, #sought do
  if tonumber(call('ZSCORE', records, sought[i])) < at then
    call('ZADD', records, 'XX', at, sought[i])
  end
end
