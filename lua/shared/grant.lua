-- grant.lua writes records. A server that is out of memory refuses the first one: a script that
-- grants has written nothing before.

-- permit_bytes returns the four bytes of a number of permits, at most MAX_RECORD.
local function permit_bytes(n)
  n = math.min(n, MAX_RECORD)
  local b, c = math.floor(n / 256), math.floor(n / 65536)
  return string.char(n % 256, b % 256, c % 256, math.floor(c / 256))
end

-- next_prefix returns the prefix with the next id of the same client: the counter of its ids is a
-- big-endian number at the end of the prefix, and after the last one comes 0. Other formats have so
-- few ids, or none that are known, that all but the first byte counts, and the prefix then grows:
-- there must always be a next one.
local function next_prefix(prefix)
  local last = string.byte(prefix, -1)
  if #prefix > 1 and last < 255 then -- nearly always
    return string.sub(prefix, 1, -2) .. string.char(last + 1)
  end
  local counter = ({ [9] = 3, [13] = 3, [16] = 3, [17] = 8, [20] = 3, [21] = 8 })[#prefix]
  local first = counter and #prefix - counter + 1 or 2
  for at = #prefix, first, -1 do
    local digit = string.byte(prefix, at)
    if digit < 255 then
      return string.sub(prefix, 1, at - 1) .. string.char(digit + 1) .. string.rep('\0', #prefix - at)
    end
  end
  return counter and string.sub(prefix, 1, first - 1) .. string.rep('\0', counter) or prefix .. '\0'
end

-- share_prefix returns a prefix whose id holds the permits of one request: the record may hold
-- those of others, too.
local function share_prefix(prefix, permits)
  local own = client_prefix(prefix)
  return own .. permit_bytes(permits) .. string.sub(prefix, #own + 5)
end

-- add_record writes a record of n permits, or several where four bytes do not hold n. A record with
-- this id may exist: another client's, or one of a later attempt of this batch. The next id is then
-- used. It returns the last prefix that it used.
local function add_record(records, prefix, n, score)
  local added = call('ZADD', records, 'NX', score, prefix .. permit_bytes(n))
  if added == 1 and n <= MAX_RECORD then
    return prefix
  end
  return add_record(records, next_prefix(prefix), n - added * math.min(n, MAX_RECORD), score)
end

-- add_records writes so many records of n permits each, and returns the prefix after the last one.
-- As in add_record, the next id is tried in the place of one that exists. One call of Redis for
-- many records takes half the time of many calls.
local function add_records(records, prefix, count, n, score)
  local score_text = string.format('%.17g', score)
  while count > 0 and n <= MAX_RECORD do
    local added, bytes = {}, permit_bytes(n)
    for i = 1, 2 * math.min(count, 1000), 2 do
      added[i], added[i + 1] = score_text, prefix .. bytes
      prefix = next_prefix(prefix)
    end
    count = count - call('ZADD', records, 'NX', unpack(added))
  end
  for _ = 1, count do
    prefix = next_prefix(add_record(records, prefix, n, score))
  end
  return prefix
end

-- find_own_record returns the record of this client with a score that n more permits fit in, and
-- its permits; nil and 0 if there is none. It reads a limited number of records: with more clients
-- than that, some write a second record.
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

-- remove_surplus takes permits out of the oldest records, given in order, and returns how many
-- these did not hold. With a rate, records that are doubtful under it (record.lua) count as empty.
-- It writes at once, first what a server that is out of memory refuses: the state is better
-- afterwards even if the rest of the script fails.
local function remove_surplus(records, oldest, rate, surplus)
  local gone, rest = {}, nil
  for i = 1, #oldest do
    if surplus == 0 then
      break
    end
    local held = permits_of(oldest[i])
    held = rate and is_doubtful(held, rate) and 0 or held
    gone[i] = oldest[i]
    if held > surplus then
      rest = held - surplus
    end
    surplus = math.max(0, surplus - held)
  end
  if rest then
    local shrunk = gone[#gone]
    add_record(records, string.sub(shrunk, 1, -5), rest, call('ZSCORE', records, shrunk))
  end
  call('ZREM', records, unpack(gone))
  return surplus
end
