-- join.lua: the record of a bucket, which holds all that a client is granted within it.

-- find_own_record returns the record of this client with a score that n more permits fit in, and its permits; nil and 0 if
-- there is none. It reads a limited number of records: with more clients than that, some write a second record.
local function find_own_record(records, score, prefix, n)
  local own = client_prefix(prefix)
  local bucket = call('ZRANGEBYSCORE', records, score, score, 'LIMIT', '0', 512)
  for i = 1, #bucket do
    local member = bucket[i]
    if #member == #prefix + 4 and string.sub(member, 1, #own) == own then
      local held = permits_of(member)
      if held + n <= MAX_RECORD then
        return member, held
      end
    end
  end
  return nil, 0
end
