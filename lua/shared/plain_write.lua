-- plain_write.lua writes what follows the record of a plain grant. Given: value and records (the
-- keys), counted, expired_count, expired_permits and ttl (of plain_read.lua), taken (the permits of
-- the record, as text), left (the permits free afterwards).
if not counted then
  call('SET', value, string.format('%.0f', left))
elseif expired_permits == 0 then
  call('DECRBY', value, taken)
elseif left ~= counted then
  call('INCRBY', value, string.format('%.0f', left - counted))
end
if expired_count > 0 then
  call('ZREMRANGEBYRANK', records, '0', expired_count - 1)
end
if ttl > 0 then
  ttl = math.min(ttl, MAX_NUMBER)
  call('PEXPIRE', value, string.format('%.0f', ttl))
  call('PEXPIRE', records, string.format('%.0f', ttl))
end
