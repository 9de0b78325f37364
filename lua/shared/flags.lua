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
-- grant a part of the only size rather than nothing; but nothing while expired records may hold the
-- rest
local UP_TO = 'u'
local STRICT_ONLY = 'q' -- the queue goes on behind the strict groups, so only these are granted
local APART = 'j' -- join no record of another batch
local JOINT = 'a' -- the call asks the next limiter, too
local GENERAL = 'g' -- the call is more than a plain grant, and has more arguments
