-- save.lua writes the free permits if they changed, and removes the records that leave. Before it comes what is granted: a
-- server that is full refuses that, and then nothing is written.
--
-- takes  value, records, counted, free, dead
if not counted then
  call('SET', value, string.format('%.0f', free))
elseif free ~= counted then
  call('INCRBY', value, free - counted) -- a number up to 1e15 reaches Redis as it is
end
if dead > 0 then
  call('ZREMRANGEBYRANK', records, '0', dead - 1)
end
