-- plain_write.lua writes what follows the record of a plain grant. Given: name, value and records
-- (the keys), counted, expired_count, expired_permits, ttl and keep_alive (of plain_read.lua),
-- taken (the permits of the record, as text), left (the permits free afterwards).
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
if keep_alive > 0 then
  ttl = keep_alive
  call('PEXPIRE', name, string.format('%.0f', ttl))
end
if ttl > 0 then
  ttl = math.min(ttl, MAX_NUMBER)
  call('PEXPIRE', value, string.format('%.0f', ttl))
  call('PEXPIRE', records, string.format('%.0f', ttl))
end
