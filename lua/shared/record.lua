-- record.lua reads records, the members of a permits set. A record ends in its permits, as four
-- bytes, least significant first; the bytes before them are its prefix: a format byte or more, and
-- an id. internal/record describes the formats.

-- to_micros converts ms to whole µs, rounded up. A double holds a time of today to a quarter of a
-- µs, so a smaller fraction is an error of rounding.
local function to_micros(ms)
  return math.ceil(ms * 1000 - 0.3)
end

-- permits_of returns the permits of a member: 0 if it is too short to be a record.
local function permits_of(member)
  local a, b, c, d = string.byte(member, -4, -1)
  if d == nil then
    return 0
  end
  return a + b * 256 + c * 65536 + d * 16777216
end

-- is_doubtful tells whether a record has too many permits for a grant under a rate. Redisson grants
-- a request for -1 permits, and stores a record of 4294967295.
local function is_doubtful(permits, rate)
  return permits >= 2147483648 and permits > rate
end

-- sum_permits returns the permits of members. With a rate, the second result has those of doubtful
-- members, and the first does not.
local function sum_permits(members, rate)
  local sum, doubtful = 0, 0
  for i = 1, #members do
    local permits = permits_of(members[i])
    if rate and is_doubtful(permits, rate) then
      doubtful = doubtful + permits
    else
      sum = sum + permits
    end
  end
  return sum, doubtful
end

-- believed returns how many of the doubtful permits count: at most rate - free - sum. free is the
-- free permits with the expired ones (nil: not known), sum the permits in other live records. After
-- the rate was lowered free may be below 0, so more permits than the rate may count.
local function believed(rate, free, sum, doubtful)
  return math.min(doubtful, math.max(0, rate - (free or 0) - sum))
end

-- client_prefix returns the part of a prefix that all records of its client begin with.
local function client_prefix(prefix)
  return string.sub(prefix, 1, ({ [4] = 2, [9] = 6, [13] = 6, [16] = 13, [17] = 9, [20] = 13, [21] = 9 })[#prefix])
end

-- origin_of returns the first bytes of the id of a record as a number, which tells its client: five
-- bytes, or four in the oldest format; -1 if the member has no known format.
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
