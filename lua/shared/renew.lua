-- renew.lua gives the state the life time of the configuration, or all keys the keep-alive. The state that belongs to one
-- client says nothing any more an interval after its last use, and leaves a minute later.
--
-- takes  name, value, records, own, interval, keep, life
if keep > 0 then
  life = keep
  call('PEXPIRE', name, life)
end
if own and (life <= 0 or life > interval + 60000) then
  life = interval + 60000
end
if life > 0 then
  call('PEXPIRE', value, life)
  call('PEXPIRE', records, life)
end
