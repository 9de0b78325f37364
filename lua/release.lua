-- release.lua gives permits back before they expire: those of the oldest grants first, so that what
-- stays counted is never older than it was; or only those that were granted at one time. Whole
-- records are removed; the last one shrinks.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 client_now  ms; '': this server's clock
--       2 wanted      permits
--       3 flags       b finish a rebuild
--       then, to undo a grant, or nothing:
--       4 undone      its score
--       5 own         its client, as origin_of has it; in the oldest format only the first two
--                     bytes of the id
-- reply 1 status      0; 1 to 7 not initialised: config.lua
--       with status 0:
--       2 notes       base.lua; with MORE, the caller asks again for the rest
--       3 returned    permits that came back

--@include base
--@include record
--@include config
--@include state
--@include grant
--@include commit
--@include keep_alive
local client_now, wanted, rebuild = ARGV[1], tonumber(ARGV[2]), ARGV[3] == 'b'
local undone, own = ARGV[4], tonumber(ARGV[5] or '')
local limiter, fault = read_config(0)
if not limiter then
  return { fault }
end
local records = limiter.records
local now = read_clock(client_now)
local state = load_state(limiter, now, rebuild)
if not undone and not state.more and state.free >= 0 then
  local oldest = call('ZRANGE', records, state.expired_count, state.expired_count + MAX_EXPIRED - 1)
  local _, doubtful = sum_permits(oldest, limiter.rate)
  if doubtful > 0 then
    state = load_state(limiter, now, rebuild, true) -- replaces them
  end
end

local returned, gone = 0, {}
local shrunk, score, rest -- the record that keeps a rest of its permits
if not state.more then
  local page, from, full = {}, undone and 0 or state.expired_count
  repeat -- other clients can have many records with the score of a grant
    if not undone then
      page = call('ZRANGE', records, from, from + MAX_EXPIRED - 1, 'WITHSCORES')
    elseif tonumber(undone) > state.cutoff then
      page = call('ZRANGEBYSCORE', records, undone, undone, 'WITHSCORES', 'LIMIT', from, MAX_EXPIRED)
    end
    for i = 1, #page, 2 do
      if returned == wanted then
        break
      end
      local held, origin = permits_of(page[i]), undone and origin_of(page[i])
      local others = undone and origin ~= own and math.floor(origin / 65536) ~= own
      if not others and returned + held > wanted then
        shrunk, score, rest = page[i], page[i + 1], returned + held - wanted
        returned = wanted
      elseif not others then
        returned = returned + held
        if undone then
          gone[#gone + 1] = page[i]
        else
          state.expired_count = state.expired_count + 1 -- commit removes it with the expired ones
        end
      end
    end
    from = from + MAX_EXPIRED
    full = #page == 2 * MAX_EXPIRED
  until not undone or returned > 0 or not full or from >= 10 * MAX_EXPIRED
  if full and returned < wanted and (returned > 0 or not undone) then
    state.notes = state.notes + MORE
  end
  state.free = math.min(limiter.rate, state.free + returned)
end

commit(limiter, state, state.free)
if #gone > 0 then
  call('ZREM', records, unpack(gone))
end
if shrunk then
  call('ZREM', records, shrunk)
  add_record(records, string.sub(shrunk, 1, -5), rest, score)
end
apply_ttl(limiter, state.ttl, now)
return { 0, state.notes, returned }
