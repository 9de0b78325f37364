-- acquiremany.lua grants permits to several calls, each for itself, by plain grants
-- (plain_read.lua). A call asks one limiter, or several of which all grant or none does. A call has
-- no effect if it needs more than plain grants, or if an earlier call asks one of its limiters,
-- too: the client then makes it by acquire.lua or allowall.lua. All limiters are read before one is
-- written, so a key of another type has no effect on any of them.
--
-- KEYS  three a limiter: config, value, permits
-- ARGV  1 client_now       ms, up to three decimals
--       then four a limiter:
--         wanted           permits
--         record           that holds them
--         configured_rate  the caller's rate, "rate interval type keep-alive"; '': none
--         flags            CHECK, WHOLE_SCORES, NEXT, JOINT
-- reply five a limiter:
--         status           of the call, with its first limiter: 0; or it has no effect: 10 it is no
--                          plain grant; 11 it is none now, because too few permits are free, or
--                          many records have expired
--         rate
--         interval         ms
--         free             permits afterwards
--         next             us until the next permit returns (0: as in acquire.lua)

-- base.lua: constants. It defines no function: each definition costs a tenth of a call of Redis.
local call, find, tonumber = redis.call, string.find, tonumber
local MAX_NUMBER = 1e15 -- scripts count with no more permits, and no longer times (ms), than this
local MAX_EXPIRED = redis.MAX_EXPIRED or 2000 -- records that leave in one call: a million must not block Redis
local MAX_ADDED = 256 -- live records that a refusal adds up, and any call where the free permits are negative
local MAX_RECORD = 4294967295 -- permits in one record
local FRACTIONS_BELOW = 200 -- ms: shorter intervals have scores exact to the µs

-- Whole numbers go to Redis as text ('%.0f'), except ranks: Redis 7.2.0 to 7.2.4 write a number
-- from 1e8 on that ends in zeros with an exponent, which INCRBY and PEXPIRE refuse, and HSET
-- stores.

-- Notes: a reply has the sum of those that apply. internal/protocol has the same list. The free
-- permits were repaired, because they were: missing; not a number; negative; above the rate; with
-- the expired permits above the rate; not the rate although there is no record; with the records
-- below the rate. HIGH: with the records they were above the rate, and the records were repaired.
local MISSING, GARBLED, NEGATIVE, ABOVE, DRIFTED, EMPTY, LOW, HIGH = 1, 2, 4, 8, 16, 32, 64, 128
local MORE = 256 -- expired records remain: one call removes a limited number
local REBUILD_PENDING = 512 -- the free permits must be rebuilt once these are gone; the next request says so by a flag
local RATE_MISMATCH = 1024 -- the configured rate is not the caller's
local FOREIGN_WRITER = 2048 -- a record of a client other than this library was seen, after a refusal in the queue
local MANY = 4096 -- there are too many live records for one call to add up: recount.lua does that
-- flags.lua names the flags of the scripts that grant permits. An argument has the letters of those
-- that apply. internal/protocol has the same list.
local ENFORCE = 'e' -- refuse if the configured rate is not the caller's; else the caller's rate is set where none is
local REBUILD = 'b' -- finish a rebuild of the free permits
local CHECK = 's' -- compare the free permits with the records
local WHOLE_SCORES = 'w' -- scores in whole ms
local RECORD_EACH = 'r' -- a record for each grant
local SERVER_TIME = 't' -- this server's clock, in the place of the caller's
local NEXT = 'n' -- return when the next permit returns
local DETAIL = 'd' -- return when permits will be free
local UP_TO = 'u' -- grant a part of the only size rather than nothing; but nothing while expired records may hold the rest
local STRICT_ONLY = 'q' -- the queue goes on behind the strict groups, so only these are granted
local APART = 'j' -- join no record of another batch
local JOINT = 'a' -- the call asks the next limiter, too
local GENERAL = 'g' -- the call is more than a plain grant, and has more arguments
local most_expired = 128 -- records of one limiter; more would take the call too long
local now_text, now = ARGV[1], tonumber(ARGV[1])
local whole_text = string.format('%.0f', math.ceil(now))
local reply, read = {}, {} -- read: six a limiter, for the writes
local granted = {} -- the first and the last limiter, from 0, of each call that all its limiters can grant
local seen = {} -- records keys: what is read of a limiter is wrong after a grant of the same limiter
local first, status = 0, 0 -- of the call so far: its first limiter, and the status
for i = 0, #KEYS / 3 - 1 do
  local name, value, records, at = KEYS[3 * i + 1], KEYS[3 * i + 2], KEYS[3 * i + 3], 4 * i
  local configured_rate, flags = ARGV[at + 4] ~= '' and ARGV[at + 4], ARGV[at + 5]
  local wanted, own, kept = tonumber(ARGV[at + 2]), 5 * i, 6 * i
  local telling = flags ~= '' and find(flags, NEXT, 1, true) and wanted
-- plain_read.lua reads what a plain grant needs of a limiter. A plain grant is one record that
-- joins no other, in a limiter of type '0' without keep-alive, whose state needs no repair and is
-- not older than the configuration. This is a block to be included, as a function would be slower.
-- A plain grant makes these calls to Redis:
--   HMGET   the configuration, which others may change at any time
--   GET     the free permits, which must be checked before they are used
--   ZCOUNT  the expired records
--   ZCARD   all records: if none is live, all permits must be free. If telling is set and at most
--           half of the rate remains, ZRANGE reads the oldest live record instead
--   PTTL    the TTL to apply to the state
--   ZADD    the record: the first write, unless the limiter is new; a full server refuses it
--   DECRBY  the free permits
-- Without a configuration HSET comes before ZADD, and without stored free permits SET replaces
-- DECRBY. Expired records cost ZRANGE (their permits) and ZREMRANGEBYRANK, and INCRBY replaces
-- DECRBY; a check costs ZRANGE (the live records); a TTL PEXPIRE of both keys.
--
-- Given: name, value and records (the keys), configured_rate ("rate interval type keep-alive"; nil
-- or false: none), now (ms; nil or false: becomes this server's time), now_text and whole_text
-- (now, and the next whole ms, as text; nil or false: none), flags (CHECK and WHOLE_SCORES count),
-- most_expired (with so many expired records it is no plain grant), telling (the permits to be
-- granted, if the oldest live record is asked for; nil or false: it is not). Result: fields (the
-- configuration as read), and free, the free permits with the expired ones; nil: the state allows
-- no plain grant. Only with free: rate, interval, kind, new (the limiter has no configuration yet),
-- stored and counted (the stored free permits, as text and as a number; false: none),
-- expired_count, expired_permits, live_count (nil if the oldest live record was read), oldest (that
-- record and its score; nil: not read), cutoff, ttl, score (of a grant), score_text (the same for
-- ZADD), next_us (µs until a permit returns; nil if no live record was read).
local fields = call('HMGET', name, 'rate', 'interval', 'type', 'keepAliveTime')
local rate, interval, kind = fields[1], fields[2], fields[3]
local new = configured_rate and not (rate or interval or kind or fields[4])
if new then
  rate, interval, kind = string.match(configured_rate, '^(%d+) (%d+) (0) 0$')
end
local free, stored, counted, expired_count, live_count, oldest, cutoff, ttl, score, score_text, next_us
local expired_permits = 0
if
  kind == '0'
  and not fields[4]
  and rate
  and interval
  and (
    not configured_rate and #rate <= 15 and #interval <= 15 and find(rate, '^%d+$') and find(interval, '^[1-9]%d*$')
    or configured_rate and configured_rate == rate .. ' ' .. interval .. ' 0 0'
  )
then
  rate, interval = tonumber(rate), tonumber(interval)
  if not now then
    local time = call('TIME')
    now = (tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000
  end
  cutoff = now - interval
  stored = call('GET', value)
  expired_count = call('ZCOUNT', records, '-inf', cutoff)
  counted = stored and (find(stored, '^[1-9]%d*$') and #stored <= 15 or stored == '0') and tonumber(stored)
  local live -- whether there is a live record
  if telling and counted and (counted - telling) * 2 <= rate then
    oldest = call('ZRANGE', records, expired_count, expired_count, 'WITHSCORES')
    live = oldest[1]
  else
    live_count = call('ZCARD', records) - expired_count
    live = live_count > 0
  end
  if expired_count > 0 and expired_count < most_expired then
    local expired = call('ZRANGE', records, '0', expired_count - 1)
    for n = 1, expired_count do
      local a, b, c, d = string.byte(expired[n], -4, -1)
      if d then
        expired_permits = expired_permits + a + b * 256 + c * 65536 + d * 16777216
      end
    end
  end
  local unused = not stored and not live and expired_count == 0
  free = unused and rate or counted and not new and counted + expired_permits or nil
  if free and (free > rate or not live and free ~= rate or expired_count >= most_expired) then
    free = nil
  elseif free and flags ~= '' and live and find(flags, CHECK, 1, true) then
    local added, sum = call('ZRANGE', records, expired_count, expired_count + 255), free
    for n = 1, #added do
      local a, b, c, d = string.byte(added[n], -4, -1)
      if d then
        sum = sum + a + b * 256 + c * 65536 + d * 16777216
      end
    end
    if sum ~= rate or #added == 256 then -- more are left to the general path
      free = nil
    end
  end
  if free then
    ttl = call('PTTL', name)
    score = (interval >= FRACTIONS_BELOW or find(flags, WHOLE_SCORES, 1, true)) and math.ceil(now) or now
    score_text = score == now and now_text or whole_text or score -- a text costs Redis less than a number
    if oldest and live then
      local until_next = math.min(tonumber(oldest[2]), score) - cutoff
      until_next = ttl >= 0 and math.min(until_next, ttl + 1) or until_next
      next_us = math.max(1, math.ceil(until_next * 1000 - 0.3)) -- as to_micros has it
    end
  end
end
  if expired_count and expired_count >= most_expired then
    status = status == 0 and 11 or status -- the client's own script removes them
  elseif not free or seen[records] then
    free, status = nil, 10
  elseif free < wanted and status == 0 then
    status = 11
  end
  seen[records] = true
  reply[own + 1], reply[own + 2], reply[own + 3], reply[own + 4], reply[own + 5] =
    status, free and rate or 0, free and interval or 0, free and free - wanted or 0, next_us or 0
  read[kept + 1], read[kept + 2], read[kept + 3], read[kept + 4], read[kept + 5], read[kept + 6] =
    score_text, counted, expired_count, expired_permits, ttl, new
  if flags == '' or not find(flags, JOINT, 1, true) then
    if status == 0 then
      granted[#granted + 1], granted[#granted + 2] = first, i
    else
      reply[5 * first + 1] = status
    end
    first, status = i + 1, 0
  end
end
for call_at = 1, #granted, 2 do
  for i = granted[call_at], granted[call_at + 1] do
    local value, records, n, kept, at = KEYS[3 * i + 2], KEYS[3 * i + 3], 5 * i, 6 * i, 4 * i
    local counted, expired_count, expired_permits, ttl = read[kept + 2], read[kept + 3], read[kept + 4], read[kept + 5]
    local taken, record, left = ARGV[at + 2], ARGV[at + 3], reply[n + 4]
    if read[kept + 6] then
      local rate, interval = string.format('%.0f', reply[n + 2]), string.format('%.0f', reply[n + 3])
      call('HSET', KEYS[3 * i + 1], 'rate', rate, 'interval', interval, 'type', '0')
    end
    if call('ZADD', records, 'NX', read[kept + 1], record) == 0 then
      if i == granted[call_at] then
        reply[n + 1] = 10
        break -- nothing is written yet
      end
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
-- grant.lua writes records.

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
-- It writes at once, first what a full server refuses: the state is better afterwards even if the
-- rest of the script fails.
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
      add_record(records, next_prefix(string.sub(record, 1, -5)), tonumber(taken), read[kept + 1])
    end
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
  end
end
return reply
