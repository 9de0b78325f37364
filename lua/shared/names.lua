-- names.lua names what all scripts use: as locals, which cost next to nothing.
local call, find, tonumber = redis.call, string.find, tonumber
local MOST = 1e15 -- more permits than this count as this

-- The notes of an answer are a sum of these; script.go has the same list.
-- Why the free permits were rebuilt: they were missing, no number, negative, above the rate, more than the rate with the
-- expired ones, not the rate without a record, less than the rate with the records.
local MISSING, GARBLED, NEGATIVE, ABOVE, DRIFTED, EMPTY, LOW = 1, 2, 4, 8, 16, 32, 64
local MORE = 256 -- expired records remain, more than leave in one call
local UNBUILT = 512 -- and the free permits are to be rebuilt once these are gone: the caller says so when it asks again
local DIFFERS = 1024 -- the rate in force is another than the caller's
local OTHER = 2048 -- a record was met that is no Go client's (acquire.lua, when a group in line is refused)
