-- setrate.lua sets the rate of a limiter whatever it was, as Redisson's setRate and updateRate do.
-- Its grants are removed, or kept and counted against the new rate.
--
-- KEYS  1 config, 2 value, 3 client value, 4 permits, 5 client permits
-- ARGV  1 client_now  ms; '': this server's clock
--       2 rate
--       3 interval    ms
--       4 kind        the type
--       5 keep_alive  ms; 0: none
--       6 flags       k keep the grants (if the type stays), u only if a rate is set
-- reply 1 set         1, else 0
--       2 notes       base.lua

--@include base
--@include record
--@include config
--@include state
--@include commit
--@include keep_alive
local client_now, rate, interval, kind, keep_alive, flags = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local name = KEYS[1]
local config = call('HMGET', name, 'rate', 'type', 'keepAliveTime')
local old_rate, old_kind, old_keep_alive = config[1], config[2], config[3]
if not old_rate and find(flags, 'u', 1, true) then
  return { 0, 0 }
end
local limiter = new_limiter(0, tonumber(rate), tonumber(interval), kind, tonumber(keep_alive))
local now = read_clock(client_now)
local notes, ttl = 0, limiter.keep_alive == 0 and call('PTTL', name) or -1

local function write_config()
  call('HSET', name, 'rate', rate, 'interval', interval, 'type', kind)
  if limiter.keep_alive > 0 or old_keep_alive then
    call('HSET', name, 'keepAliveTime', keep_alive)
  end
end

if find(flags, 'k', 1, true) and (not old_kind or old_kind == kind) then
  limiter.made = not (old_rate or old_kind)
  local old = parse_number(old_rate)
  limiter.former = old and math.max(old, limiter.rate) -- the rate by which records are judged
  if limiter.made then
    forget_ended_state(limiter.value, limiter.records)
  end
  local state = load_state(limiter, now, true)
  -- The rate is new, so nothing was wrong. Of records that are too many to add up, the free permits
  -- tell the sum. But what they tell is used only below 0, because they may be those of another
  -- rate.
  notes = (state.more and REBUILD_PENDING or 0) + (state.many and MANY or 0)
  if notes > 0 and state.counted and old then
    state.free = math.min(0, state.counted + state.expired_permits + limiter.rate - old)
  end
  write_config()
  commit(limiter, state, state.free)
else
  local gone = old_kind ~= kind and { 2, 3, 4, 5 } or limiter.own and { 3, 5 } or { 2, 4 }
  for _, i in ipairs(gone) do
    if is_foreign(i) then
      return redis.error_reply('WRONGTYPE another program uses the key ' .. KEYS[i])
    end
  end
  write_config()
  for _, i in ipairs(gone) do
    call('UNLINK', KEYS[i])
  end
end
if limiter.keep_alive == 0 and (parse_number(old_keep_alive) or 0) > 0 then
  -- The keep-alive that renewed the TTL is gone, so the TTL goes, too.
  ttl = -1
  call('PERSIST', name)
  call('PERSIST', limiter.value)
  call('PERSIST', limiter.records)
end
apply_ttl(limiter, ttl, now)
return { 1, notes }
