-- state.lua reads a limiter and changes nothing, not even what has expired. It reads every record,
-- unless only the configuration is wanted.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 client_now  ms; '': this server's clock
--       2 flags       c configuration alone
-- reply 1 status      0; 1 to 7 not initialised: config.lua
--       with status 0:
--       2 rate
--       3 interval    ms
--       4 type
--       5 keep_alive  ms
--       without c:
--       6 free        permits
--       7 used        permits in live records
--       8 count       live records
--       9 oldest      time of the oldest of them (us; 0: none)
--      10 newest      time of the newest of them (us; 0: none)
--      11 ttl         of the configuration (ms; -1: none)
--      12 consistent  1 if free permits and records add up to the rate, else 0

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
-- config.lua: the keys of a limiter, its configuration, numbers as they are stored, the clock, and
-- the score that a grant gets. A limiter has five keys: 1 config, 2 value, 3 client value, 4
-- permits, 5 client permits.

-- choose_keys returns the keys of the value and of the records, by the type of the limiter: '0' has
-- one pair for all clients, '1' one for each client. offset is the number of keys before those of
-- the limiter.
local function choose_keys(offset, kind)
  if kind == '1' then
    return KEYS[offset + 3], KEYS[offset + 5]
  end
  return KEYS[offset + 2], KEYS[offset + 4]
end

-- parse_number returns the number that a text of digits is, at most MAX_NUMBER; nil for any other
-- text: tonumber also takes 'nan', 'inf' and '0x10', and not on every server the same.
local function parse_number(text)
  return text and find(text, '^%d+$') and (#text <= 15 and tonumber(text) or MAX_NUMBER) or nil
end

-- parse_value returns the free permits as a number if the text has the form that INCRBY accepts,
-- else nil. They are negative after the rate was lowered below what is granted.
local function parse_value(stored)
  if stored and find(stored, '^-?[1-9]%d*$') then
    return #stored <= 15 and tonumber(stored) or stored == '1000000000000000' and MAX_NUMBER or nil
  end
  return stored == '0' and 0 or nil
end

-- new_limiter returns a limiter: name, value, records (keys), own (the pair is this client's
-- alone), rate, interval (ms), keep_alive (ms; 0: none).
local function new_limiter(offset, rate, interval, kind, keep_alive)
  local value, records = choose_keys(offset, kind)
  return {
    name = KEYS[offset + 1],
    value = value,
    records = records,
    own = kind == '1',
    rate = rate,
    interval = interval,
    keep_alive = keep_alive,
  }
end

-- forget_ended_state removes the state of a limiter whose configuration has just expired: keys that
-- expire within 10 ms. The state expires a moment after the configuration, because a script reads
-- that TTL first and sets the state's later. A new limiter must not count the state.
local function forget_ended_state(value, records)
  local a, b = call('PTTL', value), call('PTTL', records)
  local last = math.max(a, b)
  if a ~= -1 and b ~= -1 and last >= 0 and last <= 10 then
    call('GET', value) -- fails if the key has another type, as the next call does
    call('ZCARD', records)
    call('UNLINK', value, records)
  end
end

-- read_config reads the configuration of a limiter. configured_rate is the caller's rate ('rate
-- interval type keep-alive'), which takes the place of missing fields, or nil; config is the reply
-- of HMGET if it was read before. It returns a limiter with three more fields: mismatch (the
-- caller's rate is another one), missing (fields and values that HSET must write, or nil), made
-- (there is no configuration yet; then the state of a limiter that has ended is removed). Without a
-- usable configuration it returns nil and a status: 1 nothing is set; 2, 3, 4 rate, interval, type
-- is missing; 5, 6, 7 the same is invalid.
local function read_config(offset, configured_rate, config)
  local missing, made = nil, false
  config = config or call('HMGET', KEYS[offset + 1], 'rate', 'interval', 'type', 'keepAliveTime')
  if not (config[1] and config[2] and config[3]) then
    if not configured_rate then
      if not (config[1] or config[2] or config[3]) then
        return nil, 1
      end
      return nil, config[1] and (config[2] and 4 or 3) or 2
    end
    missing, made = {}, not (config[1] or config[2] or config[3] or config[4])
    local fields, i = { 'rate', 'interval', 'type', 'keepAliveTime' }, 0
    for text in string.gmatch(configured_rate, '%d+') do
      i = i + 1
      if not config[i] and not (i == 4 and text == '0') then
        config[i] = text
        missing[#missing + 1] = fields[i]
        missing[#missing + 1] = text
      end
    end
  end
  local rate, interval, kind = parse_number(config[1]), parse_number(config[2]), config[3]
  if find(config[1], '^%-%d+$') then
    rate = 0 -- Java can set a negative rate, which also grants nothing
  end
  if not rate then
    return nil, 5
  elseif not interval or interval < 1 then
    return nil, 6
  elseif kind ~= '0' and kind ~= '1' then
    return nil, 7
  end
  local limiter = new_limiter(offset, rate, interval, kind, parse_number(config[4]) or 0)
  limiter.mismatch = configured_rate
    and configured_rate ~= config[1] .. ' ' .. config[2] .. ' ' .. kind .. ' ' .. (config[4] or '0')
  limiter.missing, limiter.made = missing, made
  if made then
    forget_ended_state(limiter.value, limiter.records)
  end
  return limiter
end

-- is_foreign tells whether KEYS[i] belongs to another program: it has not the Redis type that a
-- limiter gives it. Such a key is neither removed nor changed.
local function is_foreign(i)
  local found = call('TYPE', KEYS[i]).ok
  return found ~= 'none' and found ~= ({ 'hash', 'string', 'string', 'zset', 'zset' })[(i - 1) % 5 + 1]
end

-- read_clock returns the time in ms, exact to the µs: the client's, given as text, or this server's
-- if that is ''.
local function read_clock(client_now)
  if client_now ~= '' then
    return tonumber(client_now)
  end
  local time = call('TIME')
  return (tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000
end

-- grant_score returns the score of a grant, and whether it is the end of a bucket. It is never
-- earlier than now, so that no window holds more than the rate. With a bucket (ms) it is the end of
-- a bucket of time of that length. With a granularity one record then stands for all that a client
-- is granted within it. A lease lasts for at least a quarter of a bucket, so that the next one can
-- be taken before the end of the last. Without a bucket it is now, or the next whole ms if the
-- interval is long or whole_ms: Redis keeps up to 128 records in a list, and adding one takes three
-- times as long if their scores are fractions. Redisson before 3.16.4 returns waits that are too
-- short where scores are fractions.
local function grant_score(now, interval, bucket, lease, whole_ms)
  local length = bucket and math.min(bucket, math.floor(interval / 10)) or 1
  if length > 1 then
    return math.ceil((lease and now + length / 4 or now) / length) * length, true
  elseif interval >= FRACTIONS_BELOW or whole_ms then
    return math.ceil(now), false
  end
  return now, false
end
-- state.lua: the free permits and the records of a limiter: load_state counts expired permits back,
-- and repairs the free permits where they are wrong.

-- read_record returns the record of a rank, and its score as text; an empty table if there is none.
local function read_record(records, rank)
  return call('ZRANGE', records, rank, rank, 'WITHSCORES')
end

-- load_state reads the state of a limiter, without the records that have expired. It writes only
-- what repairs a surplus: Redis does not undo the first half of a script whose second half fails,
-- so a script reads everything, decides, and then writes (commit.lua). rebuild: this call finishes
-- a rebuild; check: compare with the records though nothing seems wrong. It returns a table: stored
-- (text), counted (the same as a number, or nil), free (with the expired permits), expired_count
-- and expired_permits (the records that leave with this call), more (others remain), many (there
-- are too many live records to check), oldest and oldest_score (the oldest record that stays, and
-- its score as text, or nil), cutoff (the highest expired score), ttl (ms, to be applied to the
-- state; below 0: none), notes.
local function load_state(limiter, now, rebuild, check)
  local records, cutoff = limiter.records, now - limiter.interval
  local stored, oldest, expired = call('GET', limiter.value), read_record(records, '0'), {}
  if oldest[1] and tonumber(oldest[2]) <= cutoff then
    expired = call('ZRANGEBYSCORE', records, '-inf', cutoff, 'LIMIT', '0', MAX_EXPIRED)
    oldest = read_record(records, #expired)
  end
  local expired_permits = sum_permits(expired)
  local counted = parse_value(stored)
  local state = {
    stored = stored,
    counted = counted,
    free = counted and counted + expired_permits,
    expired_count = #expired,
    expired_permits = expired_permits,
    more = #expired == MAX_EXPIRED and oldest[1] and tonumber(oldest[2]) <= cutoff,
    many = false,
    oldest = oldest[1],
    oldest_score = oldest[2],
    cutoff = cutoff,
    ttl = -1,
    notes = 0,
  }
  local wrong = not counted or counted < 0 or state.free > limiter.rate or not state.oldest or rebuild
  if wrong or check then
    -- Few calls come here, so these functions are not defined for the others.
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

    -- sum_live adds up the live records, up to about 2,000 in all limiters of the call. If all are
    -- read, the doubtful ones are replaced by one record with the permits that count (believed,
    -- record.lua). It returns the records in order, their permits, and whether there may be more.
    local function sum_live(limiter, state)
      local records, rate, limit = limiter.records, limiter.former or limiter.rate, math.floor(2000 * 5 / #KEYS)
      local page = call('ZRANGE', records, state.expired_count, state.expired_count + limit - 1)
      local sum, doubtful = sum_permits(page, rate)
      local held = believed(rate, state.counted and state.counted + state.expired_permits, sum, doubtful)
      if held < doubtful and #page < limit then
        local gone = {}
        for i = 1, #page do
          if is_doubtful(permits_of(page[i]), rate) then
            gone[#gone + 1] = page[i]
          end
        end
        local last = gone[#gone]
        if held > 0 then
          add_record(records, string.sub(last, 1, -5), held, call('ZSCORE', records, last))
        end
        call('ZREM', records, unpack(gone))
        page = call('ZRANGE', records, state.expired_count, '-1')
        state.oldest, state.oldest_score = unpack(read_record(records, state.expired_count))
      end
      return page, sum + held, #page == limit
    end

    -- rebuild_value sets the free permits of a state from the records, and notes why. Nothing is
    -- free while more expired records remain than leave in one call (the call that removes the last
    -- of them rebuilds), or while there are more live records than one call adds up (until
    -- recount.lua has). After the rate was lowered, free permits below 0 can be correct: that is
    -- checked where the records are few.
    local function rebuild_value(limiter, state, rebuild)
      local counted, rate = state.counted, limiter.rate
      local total = counted and counted + state.expired_permits
      local why
      if not state.stored then
        why = MISSING
      elseif not counted then
        why = find(state.stored, '^%-%d+$') and NEGATIVE or GARBLED
      elseif counted > rate then
        why = ABOVE
      elseif not state.oldest then
        why = total ~= rate and EMPTY or 0
      elseif counted < 0 and total <= rate and not rebuild then
        why = NEGATIVE
      else
        why = DRIFTED
      end
      if not state.oldest then
        -- All is free without a record. A limiter that was never used has neither records nor
        -- value.
        if state.stored or state.expired_count > 0 then
          state.notes = state.notes + why
        end
        state.free, state.more = rate, false
      elseif counted and why == NEGATIVE and call('ZCARD', limiter.records) - state.expired_count > MAX_ADDED then
        state.free = total
      elseif state.more then
        state.free, state.notes = math.min(0, total or 0), state.notes + why + REBUILD_PENDING
      else
        local _, sum, many = sum_live(limiter, state)
        state.many, state.free = many, many and math.min(0, total or 0) or rate - sum
        if why ~= NEGATIVE or state.free ~= total then
          state.notes = state.notes + why
        end
      end
    end

    -- check_records compares the free permits with the live records. Free permits that were lost
    -- are added (LOW). A surplus (HIGH) is taken out of the oldest records, whatever caused it: the
    -- free permits stay. So permits that Redisson's release gave back are granted once and do not
    -- return a second time; and of what was granted before the rate was lowered, the newest permits
    -- stay counted.
    local function check_records(limiter, state)
      local page, sum, many = sum_live(limiter, state)
      state.many = many
      if many then
        return
      end
      local surplus = state.free + sum - limiter.rate
      if surplus < 0 then
        state.free, state.notes = state.free - surplus, state.notes + LOW
      elseif surplus > 0 then
        state.notes = state.notes + HIGH
        remove_surplus(limiter.records, page, limiter.rate, surplus)
        state.oldest, state.oldest_score = unpack(read_record(limiter.records, state.expired_count))
      end
    end

    if wrong then
      rebuild_value(limiter, state, rebuild)
    end
    if check and state.oldest and not state.more and not state.many then
      check_records(limiter, state)
    end
  end
  state.notes = state.notes + (state.more and MORE or 0) + (state.many and MANY or 0)
  if limiter.keep_alive == 0 then
    state.ttl = call('PTTL', limiter.name)
  end
  return state
end

-- check_consistency returns the free permits as a reader sees them, and whether value and records
-- add up to the rate. all and count are the numbers of records and of live ones; expired and used
-- the permits in expired and in live records.
local function check_consistency(rate, stored, counted, all, count, expired, used)
  if count == 0 then
    return rate, counted and counted + expired == rate or all == 0 and not stored
  elseif not counted or counted + expired > rate then
    return math.max(0, rate - used), false
  end
  local by_records = counted < 0 and count <= MAX_ADDED -- as rebuild_value does
  local believed = by_records and 0 or counted + expired
  return math.max(0, believed, rate - used), counted + expired + used == rate
end
local client_now, only_config = ARGV[1], ARGV[2] == 'c'
local limiter, fault = read_config(0)
if not limiter then
  return { fault }
end
local reply = { 0, limiter.rate, limiter.interval, limiter.own and 1 or 0, limiter.keep_alive }
if only_config then
  return reply
end

local PAGE = 5000 -- records that are read at a time
local cutoff = read_clock(client_now) - limiter.interval
local stored = call('GET', limiter.value)
local expired, used, doubtful, count, all = 0, 0, 0, 0, 0
local oldest, newest = 0, 0
repeat
  local page = call('ZRANGE', limiter.records, all, all + PAGE - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    local score, permits = tonumber(page[i + 1]), permits_of(page[i])
    if score <= cutoff then
      expired = expired + permits
    else
      count = count + 1
      if is_doubtful(permits, limiter.rate) then
        doubtful = doubtful + permits
      else
        used = used + permits
      end
      newest = to_micros(math.min(score, MAX_NUMBER))
      oldest = count == 1 and newest or oldest
    end
  end
  all = all + #page / 2
until #page < 2 * PAGE

local counted = parse_value(stored)
used = used + believed(limiter.rate, counted and counted + expired, used, doubtful)
local free, consistent = check_consistency(limiter.rate, stored, counted, all, count, expired, used)
local ttl = call('PTTL', limiter.name)
for _, figure in ipairs({ free, used, count, oldest, newest, ttl, consistent and 1 or 0 }) do
  reply[#reply + 1] = figure
end
return reply
