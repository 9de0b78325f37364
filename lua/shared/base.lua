-- base.lua: constants. It defines no function: each definition costs a tenth of a call of Redis.
local call, find, tonumber = redis.call, string.find, tonumber
local MAX_NUMBER = 1e15 -- scripts count with no more permits, and no longer times (ms), than this
local MAX_EXPIRED = redis.MAX_EXPIRED or 2000 -- records that leave in one call: a million must not block Redis
local MAX_ADDED = 256 -- live records that a refusal adds up, and any call where the free permits are negative
local MAX_RECORD = 4294967295 -- permits in one record
-- how late (ms) a waiting process may call after permits have returned: timers, the network and
-- repeated calls take time
local LATENESS = 1000
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
