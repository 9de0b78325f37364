-- add.lua: new records.

-- permit_bytes returns the four bytes of a number of permits, at most MAX_RECORD.
local function permit_bytes(n)
  n = math.min(n, MAX_RECORD)
  local b, c = math.floor(n / 256), math.floor(n / 65536)
  return string.char(n % 256, b % 256, c % 256, math.floor(c / 256))
end

-- next_prefix returns the prefix with the next id. The id is a big-endian number at the end of the prefix; the first byte is
-- the format and stays. A prefix whose id is the last one grows by a byte, so there is always a next one.
local function next_prefix(prefix)
  for at = #prefix, 2, -1 do
    local digit = string.byte(prefix, at)
    if digit < 255 then
      return string.sub(prefix, 1, at - 1) .. string.char(digit + 1) .. string.rep('\0', #prefix - at)
    end
  end
  return prefix .. '\0'
end

-- share_prefix returns a prefix whose id holds the permits of one request: the record may hold those of others, too.
local function share_prefix(prefix, permits)
  local own = client_prefix(prefix)
  return own .. permit_bytes(permits) .. string.sub(prefix, #own + 5)
end

-- add_record writes a record of n permits, or several where four bytes do not hold n. A record that exists has another
-- owner, so the next id is tried. It returns the last prefix that it used.
local function add_record(records, prefix, n, score)
  local added = call('ZADD', records, 'NX', score, prefix .. permit_bytes(n))
  if added == 1 and n <= MAX_RECORD then
    return prefix
  end
  return add_record(records, next_prefix(prefix), n - added * math.min(n, MAX_RECORD), score)
end
