-- recount.lua adds up the live records of a limiter that are too many for one call: some with each
-- call, from the newest to the oldest. A record that came or left among those that were read,
-- because of a clock that is behind, makes it start again. One that was read and then changed its
-- permits, as by a release, is not noticed. So the state is repaired, by the rule of check_records,
-- only when two passes in a row found the same surplus: that both missed changes of the same size
-- is not likely.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 client_now  ms, up to three decimals; '': this server's clock
--       then how far the calls before have come ('', '', 0, 0, 0 at first):
--       2 newest      record that was read
--       3 last        the oldest record that was read
--       4 count       how many were read
--       5 sum         permits in them
--       6 seen        the surplus when all were read before
-- reply 1 status      0; 1 to 7 not initialised: config.lua
--       with status 0:
--       2 notes       base.lua; with MORE or MANY the caller goes on
--       3 to 7        the next ARGV 2 to 6

--@include base
--@include record
--@include config
--@include state
--@include grant
--@include commit
--@include keep_alive
local client_now, newest, last, count, sum = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local seen = tonumber(ARGV[6])
local limiter, fault = read_config(0)
if not limiter then
  return { fault }
end
limiter.keep_alive = 0 -- looking does not keep a limiter alive
local records = limiter.records
local now = read_clock(client_now)
local state = load_state(limiter, now)

-- How many records are read, and how many of the newest are read last: where clocks differ, a
-- record can come among these.
local PAGE, LATE = 1000, 500
if state.oldest and not state.more and not state.many then
  local expired_count, all, room = state.expired_count, call('ZCARD', records), PAGE
  local judged_rate = state.free >= 0 and limiter.rate -- below 0 the rate was lowered, and no permits are doubtful
  local low, top -- the ranks of those that were read
  if count > 0 then
    low, top = call('ZRANK', records, last), call('ZRANK', records, newest)
  end
  if not low or not top or low < expired_count or top - low + 1 ~= count then
    low = math.max(expired_count, all - LATE)
    top, count, sum = low - 1, 0, 0
  end
  local function read(start, stop)
    local page = stop >= start and call('ZRANGE', records, start, stop) or {}
    sum, count, room = sum + sum_permits(page, judged_rate), count + #page, room - #page
    return page
  end
  if count > 0 and all - 1 - top > PAGE then
    local page = read(top + 1, math.min(top + room, all - 1 - LATE))
    newest, top = page[#page], top + #page
  end
  local page = read(math.max(expired_count, low - room), low - 1)
  if #page > 0 then
    newest, last, low = count == #page and page[#page] or newest, page[1], low - #page
  end
  if low > expired_count or all - 1 - top > room then
    state.notes = state.notes + MANY
  else
    local before = sum
    read(top + 1, all - 1)
    local surplus = state.free + sum - limiter.rate
    if surplus ~= seen then
      if surplus ~= 0 then
        state.notes = state.notes + MANY
      end
      seen, count = surplus, 0 -- reads all again
    elseif surplus < 0 then
      state.free, state.notes = state.free - surplus, state.notes + LOW
    elseif surplus > 0 then
      state.notes = state.notes + HIGH
      page = call('ZRANGE', records, expired_count, expired_count + PAGE - 1)
      local rest = remove_surplus(records, page, judged_rate, surplus)
      if rest > 0 then
        last, top = read_record(records, expired_count)[1] or '', call('ZRANK', records, newest)
        count, sum, seen = top and top - expired_count + 1 or 0, before - surplus + rest, rest
        state.notes = state.notes + MANY
      end
    end
  end
end

commit(limiter, state, state.free)
apply_ttl(limiter, state.ttl, now)
return { 0, state.notes, newest, last, count, sum, seen }
