-- record.lua reads, writes and dates records, the members of a permits set. A record ends in its permits, as four
-- bytes, least significant first; the bytes before them are its prefix: a format byte or more, and an id. internal/record
-- describes the formats.

-- read_clock returns the time in ms, exact to the µs: the client's, given as text, or this server's if that is ''.
local function read_clock(client_now)
  if client_now ~= '' then
    return tonumber(client_now)
  end
  local time = call('TIME')
  return (tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000
end

-- to_micros converts ms to whole µs, rounded up. A double holds a time of today to a quarter of a µs, so a smaller fraction
-- is an error of rounding.
local function to_micros(ms)
  return math.ceil(ms * 1000 - 0.3)
end

-- grant_score returns the score of a grant, and whether it is the end of a bucket. It is never earlier than now, so that no
-- window holds more than the rate. With a granularity (ms) it is the end of a bucket of time: one record then stands for all
-- that a client is granted within it. A lease lasts for at least a quarter of a bucket, so that the next one can be taken before
-- the end of the last. Without a granularity it is now, or the next whole ms if the interval is long or whole_ms: Redis
-- keeps up to 128 records in a list, and adding one takes three times as long if their scores are fractions. Redisson before
-- 3.16.4 returns waits that are too short where scores are fractions.
local function grant_score(now, interval, granularity, lease, whole_ms)
  local length = granularity and math.min(granularity, math.floor(interval / 10)) or 1
  if length > 1 then
    return math.ceil((lease and now + length / 4 or now) / length) * length, true
  elseif interval >= FRACTIONS_BELOW or whole_ms then
    return math.ceil(now), false
  end
  return now, false
end

-- permits_of returns the permits of a member: 0 if it is too short to be a record.
local function permits_of(member)
  local a, b, c, d = string.byte(member, -4, -1)
  if d == nil then
    return 0
  end
  return a + b * 256 + c * 65536 + d * 16777216
end

-- sum_permits returns the permits of members.
local function sum_permits(members)
  local sum = 0
  for i = 1, #members do
    sum = sum + permits_of(members[i])
  end
  return sum
end

-- client_prefix returns the part of a prefix that all records of its client begin with.
local function client_prefix(prefix)
  return string.sub(prefix, 1, ({ [4] = 2, [9] = 6, [13] = 6, [16] = 13, [17] = 9, [20] = 13, [21] = 9 })[#prefix])
end

-- origin_of returns the first bytes of the id of a record as a number, which tells its client: five bytes, or four in the
-- oldest format; -1 if the member has no known format.
local function origin_of(member)
  local length, head = #member, string.byte(member)
  local first, last
  if length == 8 then
    first, last = 1, 4
  elseif length >= 10 and head == length - 5 then
    first, last = 2, 6
  elseif (length == 20 or length == 24) and head == length - 12 then
    first, last = 9, 13
  else
    return -1
  end
  local number = 0
  for at = first, last do
    number = number * 256 + string.byte(member, at)
  end
  return number
end

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
