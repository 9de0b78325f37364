-- allowall.lua asks several limiters for the requests of one batch: of each request all limiters
-- grant their part, or none does.
--
-- KEYS  five a limiter: config, value, client value, permits, client permits
-- ARGV  1 client_now       ms, up to three decimals
--       2 groups           how many groups of requests there are
--       for each group:
--         count            requests; negative if the group is strict, as in acquire.lua. 0: a
--                          strict group that keeps its sizes free of those behind it
--       for each limiter:
--         record           of all that is wanted; if one cannot hold it, only its prefix counts
--         configured_rate  the caller's rate, "rate interval type keep-alive"; '': none
--         flags            ENFORCE, REBUILD, CHECK, WHOLE_SCORES, RECORD_EACH, SERVER_TIME; of the
--                          first limiter STRICT_ONLY
--         granularity      ms; '': none
--         since            ms: the time of an earlier attempt of the same batch or before, whose
--                          records are searched first; '': there was none
--         id_count         how many ids the batch has
--         for each group:
--           size           permits of a request
-- reply 1 status           0; else as in acquire.lua, and then
--       2 failed           the number of the limiter that has it, from 0
--       with status 0:
--       2 listed           how many groups are listed at the end: none if all is granted
--       for each limiter:
--         now              us
--         rate
--         interval         ms
--         free             permits afterwards
--         next             us until the next permit returns (0: with those granted now)
--         notes            base.lua
--         reset            us until all permits are free
--         origin           the client of a record, as in acquire.lua; -2 without a refused strict
--                          group
--         together         as in acquire.lua
--       for each listed group:
--         granted          requests of it (-1: more than the rate of limiter 0; -2: of limiter 1,
--                          ...)
--         waits            one a limiter: us until it has the permits of the first refused request
--                          (0: it has them; -1: not known, so ask again)
--
-- Where plain grants will probably do, the client calls acquiremany.lua, which costs Redis half as
-- much.

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
-- expiry.lua: when a record expires.

-- expires_in returns the µs until a record with a score expires, or the limiter if that is earlier.
-- It returns at least 1: on the embedded server time goes on during a script, so the limiter may
-- have expired already.
local function expires_in(state, score)
  local longest = state.ttl < 0 and MAX_NUMBER or math.min(MAX_NUMBER, state.ttl + 1)
  return math.max(1, to_micros(math.min(longest, tonumber(score) - state.cutoff)))
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
-- commit.lua: the writes that end a script. A script that grants adds its records before: a full
-- server refuses that, and then nothing is written.

-- LATENESS is how late (ms) a waiting process may call after permits have returned: timers, the
-- network and repeated calls take time.
local LATENESS = 1000

-- commit writes the free permits if they changed, and removes the expired records.
local function commit(limiter, state, free)
  if not state.counted then
    call('SET', limiter.value, string.format('%.0f', free))
  elseif free ~= state.counted then
    call('INCRBY', limiter.value, string.format('%.0f', free - state.counted))
  end
  if state.expired_count > 0 then
    call('ZREMRANGEBYRANK', limiter.records, '0', state.expired_count - 1)
  end
end

-- apply_ttl gives the state the TTL of the configuration (ms; -1: none), or all keys the
-- keep-alive. While callers wait, a keep-alive is at least an interval and LATENESS: their process
-- calls again when permits return. waiting: this call refused such callers. Other calls do not
-- shorten that time, because callers may still wait. An interval after its last use, the pair of
-- one client holds nothing that counts; it expires a minute later. But the permits of a lease are
-- used until its end, without a call: the newest record is dated at that end, at most an eighth of
-- the interval ahead, or a second more if clocks differ. If this call makes the configuration
-- (limiter.made), an older state must not end before it.
local function apply_ttl(limiter, ttl, now, waiting)
  local name, value, records, own = limiter.name, limiter.value, limiter.records, limiter.own
  if limiter.keep_alive > 0 or own then
    local newest = tonumber(call('ZRANGE', records, '-1', '-1', 'WITHSCORES')[2])
    local ahead = newest and newest - now or 0
    local used = limiter.interval + (ahead >= 1 and ahead <= limiter.interval / 8 + 1000 and math.ceil(ahead) or 0)
    if limiter.keep_alive > 0 then
      ttl = limiter.keep_alive
      if ttl >= limiter.interval and ttl < used + LATENESS then -- with a shorter one, grants are forgotten early anyway
        ttl = math.max(ttl, used, math.min(used + LATENESS, waiting and MAX_NUMBER or call('PTTL', name)))
      end
      call('PEXPIRE', name, string.format('%.0f', ttl))
    end
    local longest = used + 60000
    if own and (ttl <= 0 or ttl > longest) then
      ttl = longest
    end
  end
  if ttl > 0 then
    ttl = math.min(ttl, MAX_NUMBER)
    call('PEXPIRE', value, string.format('%.0f', ttl))
    call('PEXPIRE', records, string.format('%.0f', ttl))
  elseif limiter.made then
    call('PERSIST', value)
    call('PERSIST', records)
  end
end
local client_now, groups, strict = ARGV[1], tonumber(ARGV[2]), 0 -- strict: how many groups are
local limiters = #KEYS / 5

-- read_numbers returns the arguments from ARGV[first] on, one a group.
local function read_numbers(first)
  local numbers = {}
  for i = 1, groups do
    numbers[i] = tonumber(ARGV[first + i - 1])
  end
  return numbers
end

-- read_request returns what is asked of a limiter, numbered from 0. total is the sum of all
-- requests.
local function read_request(number, counts)
  local first = 3 + groups + (6 + groups) * number
  local record, configured_rate, flags, granularity, since, id_count = unpack(ARGV, first, first + 5)
  local sizes, total = read_numbers(first + 6), 0
  for i = 1, groups do
    total = total + sizes[i] * counts[i]
  end
  return {
    sizes = sizes,
    total = total,
    prefix = string.sub(record, 1, -5),
    record = record,
    configured_rate = configured_rate ~= '' and configured_rate or nil,
    flags = flags,
    client_now = find(flags, SERVER_TIME, 1, true) and '' or client_now,
    granularity = tonumber(granularity),
    since = tonumber(since),
    id_count = tonumber(id_count),
  }
end

local function score_of(request, limiter, now)
  return grant_score(now, limiter.interval, request.granularity, nil, find(request.flags, WHOLE_SCORES, 1, true))
end

-- read_limiter returns the configuration and the state of a limiter, numbered from 0; or nil and a
-- status. recovered: an earlier attempt is found.
local function read_limiter(number, request, recovered)
  local flags = request.flags
  local limiter, fault = read_config(5 * number, request.configured_rate)
  local enforced = find(flags, ENFORCE, 1, true)
  if not limiter or enforced and limiter.mismatch and not recovered then
    return nil, enforced and 8 or fault
  end
  local now = read_clock(request.client_now)
  local state = load_state(limiter, now, find(flags, REBUILD, 1, true), find(flags, CHECK, 1, true))
  state.notes = state.notes + (limiter.mismatch and RATE_MISMATCH or 0)
  local score, bucketed = score_of(request, limiter, now)
  return { request = request, limiter = limiter, state = state, now = now, score = score, bucketed = bucketed }
end

-- allocate returns what is granted of each group, whether a request was refused, and whether one is
-- for more than a rate. It sets left of each limiter: the rest of its free permits, or of those in
-- available, which an earlier attempt was granted; a size above the rate may be among these. kept:
-- how many of these are kept free.
local function allocate(all, counts, available)
  local granted, refused, exceeded = {}, false, false
  local queued, blocked = find(all[1].request.flags, STRICT_ONLY, 1, true), false
  for i, one in ipairs(all) do
    one.left, one.kept = available and available[i] or one.state.free, 0
  end
  for group, wanted in ipairs(counts) do
    blocked = blocked or queued and group > strict
    local n, exceeds = blocked and 0 or wanted, nil
    for i, one in ipairs(all) do
      local size = one.request.sizes[group]
      if wanted == 0 then
        one.kept = one.kept + ((blocked or available) and 0 or size)
      elseif size > one.limiter.rate and not (available and size <= one.left) then
        exceeds = exceeds or i
      else
        n = math.max(0, math.min(n, math.floor((one.left - one.kept) / size)))
      end
    end
    if exceeds then
      granted[group], exceeded = -exceeds, true
    else
      granted[group], refused = n, refused or n < wanted
      blocked = blocked or n < wanted and group <= strict
      for _, one in ipairs(all) do
        one.left = one.left - n * one.request.sizes[group]
      end
    end
  end
  return granted, refused, exceeded
end

-- write writes what a limiter grants: records, the free permits, a TTL. It returns false, and
-- grants nothing, if the record of all that is wanted exists because a later attempt of this batch
-- was served before. Only the first limiter tells. waiting: callers that wait are refused.
local function write(one, granted, first, waiting)
  local request, limiter, state, score = one.request, one.limiter, one.state, one.score
  local prefix, records, taken = request.prefix, limiter.records, state.free - one.left
  if limiter.missing then
    call('HSET', limiter.name, unpack(limiter.missing))
  end
  if taken > 0 then
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
    if find(request.flags, RECORD_EACH, 1, true) then
      for group, size in ipairs(request.sizes) do
        prefix = add_records(records, prefix, granted[group], size, score)
      end
    elseif request.granularity then
      local joined, held = nil, 0
      if one.bucketed then
        joined, held = find_own_record(records, score, prefix, taken)
      end
      add_record(records, share_prefix(prefix, taken), taken + held, score)
      if joined then
        call('ZREM', records, joined)
      end
    elseif taken ~= request.total or taken > MAX_RECORD or call('ZADD', records, 'NX', score, request.record) == 0 then
      local known = first and request.client_now ~= '' and call('ZSCORE', records, request.record)
      if known and tonumber(known) >= score then
        return false
      end
      add_record(records, prefix, taken, score)
    end
  end
  commit(limiter, state, one.left)
  apply_ttl(limiter, state.ttl, one.now, waiting)
  return true
end

-- Read: what an earlier attempt was granted, and the state of each limiter.
local counts, all = read_numbers(3), {}
for group, count in ipairs(counts) do
  counts[group], strict = math.abs(count), count <= 0 and group or strict
end
for i = 0, limiters - 1 do
  all[i + 1] = read_request(i, counts)
end
local available -- permits of each limiter that an earlier attempt was granted
if all[1].since then
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
-- recover.lua: what an earlier attempt of the same request was granted, if its reply was lost.
local MAX_SEARCHED, SEARCH_PAGE = 20000, 1000 -- records

-- find_attempt returns the records that an earlier attempt wrote, and the permits in them that are
-- the request's; an empty list if it wrote none, nil if that is no longer known. The arguments:
-- records, the key; prefix, of the first record; id_count, how many ids the request has; since, the
-- time of that attempt or an earlier one; whole, the record if all was granted, or nil; shared,
-- whether other requests of the client join its records (then their ids hold shares); recent, the
-- last three bytes of the ids that such records had before that attempt, as numbers between blanks.
local function find_attempt(records, prefix, id_count, since, whole, shared, recent)
  local score = whole and call('ZSCORE', records, whole)
  if score then
    if tonumber(score) < since then
      return nil -- an older grant has this id, so the one that is searched has another
    end
    return { whole }, permits_of(whole)
  end
  local own = client_prefix(prefix)
  local wanted, id = {}, prefix
  for _ = 1, id_count do
    wanted[shared and string.sub(id, #own + 5) or id] = true
    id = next_prefix(id)
  end
  local found, share, others, released = {}, 0, false, false
  local rank = call('ZCOUNT', records, '-inf', string.format('(%.17g', since))
  for _ = 1, MAX_SEARCHED / SEARCH_PAGE do
    local page = call('ZRANGE', records, rank, rank + SEARCH_PAGE - 1)
    for i = 1, #page do
      local member = page[i]
      if #member == #prefix + 4 and string.sub(member, 1, #own) == own then
        if wanted[string.sub(member, shared and #own + 5 or 1, -5)] then
          found[#found + 1] = member
          share = share + permits_of(shared and string.sub(member, 1, #own + 4) or member)
          released = shared and share > permits_of(member)
        else
          local a, b, c = string.byte(member, -7, -5)
          others = others or not find(recent, string.format(' %.0f ', a * 65536 + b * 256 + c), 1, true)
        end
      end
    end
    if #found == id_count or #page < SEARCH_PAGE then
      -- A later request may have joined the record and changed its id. No id holds the share of
      -- several records.
      if shared and (#found == 0 and others or id_count > 1 or released) then
        return nil
      end
      return found, share
    end
    rank = rank + SEARCH_PAGE
  end
  return nil
end

-- refresh_scores raises the scores of records to a score: a grant must not be older than its reply.
-- A record may be gone, as a surplus. All keys of the script have been read before, so that nothing
-- fails afterwards.
local function refresh_scores(records, members, score)
  for i = 1, #members do
    local before = call('ZSCORE', records, members[i])
    if before and tonumber(before) < score then
      call('ZADD', records, 'XX', score, members[i])
    end
  end
end
  local attempts, shares, missing = {}, {}, 0
  for i, request in ipairs(all) do
    local limiter = read_config(5 * (i - 1), request.configured_rate)
    if not limiter then
      missing = missing + 1 -- the limiter was deleted
    else
      local score = score_of(request, limiter, read_clock(request.client_now))
      local shared = request.granularity ~= nil
      local whole = request.id_count == 1 and not shared and request.record or nil
      call('GET', limiter.value) -- fails before anything is written if the key has another type
      local attempt, share = find_attempt(limiter.records, request.prefix, request.id_count, request.since, whole, shared, '')
      if not attempt then
        return { 9, i - 1 }
      end
      missing = missing + (#attempt > 0 and 0 or 1)
      attempts[i], shares[i] = { limiter.records, attempt, score }, share
    end
  end
  if missing == 0 then
    available = shares
    for _, attempt in ipairs(attempts) do
      refresh_scores(unpack(attempt))
    end
  elseif missing < limiters then
    return { 9, 0 } -- expired in one limiter, and live in another
  end
end
for i, request in ipairs(all) do
  local one, status = read_limiter(i - 1, request, available)
  if not one then
    return { status, i - 1 }
  end
  all[i] = one
end

-- Decide.
local granted, refused, exceeded = allocate(all, counts, available)
local waits = {}
if available then
  for i, one in ipairs(all) do
    if one.left > 0 then
      return { 9, i - 1 } -- the groups of an attempt take all that it was granted
    end
    one.left = one.state.free
  end
elseif refused then
-- refusal.lua: whether a refusal is right, when the permits will be free, and who has them.
local MAX_WALKED = 512 -- records that a refusal walks to find a time
local TOGETHER, TOGETHER_PART = 5, 200 -- permits return together within so many ms, but at most that part of the interval

-- walk_records prepares a state for the other functions: it sets live_count and walked, the oldest
-- live records. It adds them up, raises the free permits if some were lost, and returns whether it
-- did. It does not lower them: after a release by Redisson there are more permits than the rate on
-- purpose.
local function walk_records(limiter, state)
  state.live_count = state.live_count or call('ZCARD', limiter.records) - state.expired_count
  state.walked = { state.oldest }
  if state.live_count > MAX_ADDED then
    return false
  elseif state.live_count > 1 then
    state.walked = call('ZRANGE', limiter.records, state.expired_count, state.expired_count + MAX_ADDED - 1)
  end
  local sum = sum_permits(state.walked)
  if state.free + sum >= limiter.rate then
    return false
  end
  state.free, state.notes = limiter.rate - sum, state.notes + LOW
  return true
end

-- rank_expires_in is the same for the live record of a rank, counted from 0. It reads one score:
-- scores cost Redis more than members, and few are needed.
local function rank_expires_in(limiter, state, rank)
  if rank == 0 then
    return expires_in(state, state.oldest_score)
  end
  rank = state.expired_count + rank
  return expires_in(state, call('ZRANGE', limiter.records, rank, rank, 'WITHSCORES')[2])
end

-- free_in returns in how many µs n permits will be free, if no other client takes any. free: how
-- many are free now; taken: how many are granted now, with a score. With more records than it
-- walks, it returns the time of the last that it walked.
local function free_in(limiter, state, n, free, taken, score)
  local have, walked = free, state.walked
  -- The number of live records that expire before what is taken.
  local before = taken > 0 and call('ZCOUNT', limiter.records, '-inf', score) - state.expired_count
  for i = 1, #walked do
    if before == i - 1 then
      have = have + taken
      if have >= n then
        return expires_in(state, score)
      end
    end
    have = have + permits_of(walked[i])
    if have >= n then
      return rank_expires_in(limiter, state, i - 1)
    end
  end
  if state.live_count <= #walked then
    return expires_in(state, score)
  elseif #walked > 1 then
    return rank_expires_in(limiter, state, #walked - 1)
  end
  state.walked = call('ZRANGE', limiter.records, state.expired_count, state.expired_count + MAX_WALKED - 1)
  return free_in(limiter, state, n, free, taken, score)
end

-- all_free_in returns in how many µs the permits of the first count live records will be free, and
-- those that are taken now, with a score, if no client takes any.
local function all_free_in(limiter, state, count, taken, score)
  local live = count > 0 and rank_expires_in(limiter, state, count - 1) or 0
  return math.max(live, taken > 0 and expires_in(state, score) or 0)
end

-- together_free_in returns in how many µs the permits will be free, too, that return shortly after
-- those that do in a given time. taken are granted now, with a score.
local function together_free_in(limiter, state, us, taken, score)
  local until_score = state.cutoff + us / 1000 + math.min(TOGETHER, limiter.interval / TOGETHER_PART)
  local count = call('ZCOUNT', limiter.records, '-inf', until_score) - state.expired_count
  return math.max(us, all_free_in(limiter, state, count, score <= until_score and taken or 0, score))
end

-- find_writers looks for records of other clients among those that walk_records has read. It
-- returns the origin of one that another Go client wrote, else that of the oldest record; -2: there
-- is none. Which Go client it returns depends on the id of the batch, so that each of them is
-- returned sooner or later. It notes in the state whether there is a record that no Go client
-- wrote.
local function find_writers(state, prefix)
  if not state.oldest then
    return -2
  end
  local own, members, others, foreign = client_prefix(prefix), state.walked, {}, false
  for i = 1, #members do
    if string.sub(members[i], 1, #own) ~= own then
      local origin = origin_of(members[i])
      local head = origin
      while head >= 65536 do
        head = math.floor(head / 256)
      end
      if head == 18287 then -- 'Go'
        others[#others + 1] = origin
      else
        foreign = true
      end
    end
  end
  state.notes = state.notes + (foreign and FOREIGN_WRITER or 0)
  return others[1] and others[1 + string.byte(prefix, -1) % #others] or origin_of(state.oldest)
end
  local raised = false
  for _, one in ipairs(all) do
    if not one.state.more then
      raised = walk_records(one.limiter, one.state) or raised
    end
  end
  if raised then
    granted = allocate(all, counts)
  end
  for i, one in ipairs(all) do
    local state, taken = one.state, one.state.free - one.left
    one.reset_in = not state.more and all_free_in(one.limiter, state, state.live_count, taken, one.score)
    waits[i] = {}
    local left = one.left - one.kept
    for group, size in ipairs(one.request.sizes) do
      if size <= left then
        waits[i][group] = 0
      elseif granted[group] >= 0 and granted[group] < counts[group] and not state.more then
        waits[i][group] = free_in(one.limiter, state, size, left, taken, one.score)
        if group <= strict and not one.together then
          one.together = together_free_in(one.limiter, state, waits[i][group], taken, one.score)
        end
      end
    end
    if strict > 0 and not state.more then
      one.origin = find_writers(state, one.request.prefix)
    end
  end
end

-- Write, and reply.
local reply = { 0, (refused or exceeded) and groups or 0 }
for i, one in ipairs(all) do
  local taken = one.state.free - one.left
  if not write(one, granted, i == 1, refused and strict > 0) then
    return { 9, 0 }
  end
  local limiter, state, score = one.limiter, one.state, one.score
  local reset_in = one.reset_in or to_micros(score + limiter.interval - one.now)
  local first = state.oldest and tonumber(state.oldest_score) -- as in acquire.lua
  local next_in = first and expires_in(state, taken > 0 and math.min(first, score) or first) or 0
  local at = 9 * i - 7
  reply[at + 1], reply[at + 2], reply[at + 3] = to_micros(one.now), limiter.rate, limiter.interval
  reply[at + 4], reply[at + 5], reply[at + 6], reply[at + 7] = math.max(0, one.left), next_in, state.notes, reset_in
  reply[at + 8], reply[at + 9] = one.origin or -2, one.together or 0
end
for group = 1, reply[2] do
  reply[#reply + 1] = granted[group]
  for i = 1, limiters do
    reply[#reply + 1] = waits[i] and waits[i][group] or -1
  end
end
return reply
