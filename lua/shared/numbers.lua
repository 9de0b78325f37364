-- numbers.lua reads numbers that somebody else wrote, and never trusts them. tonumber alone takes 'nan', 'inf' and '0x10',
-- and not the same ones on every server.

-- The largest amount that is counted; more permits than this count as this.
local MOST = 1e15

-- int reads a whole number of at most 15 characters, else answers nil.
local function int(text)
  if text and #text <= 15 and string.find(text, '^-?%d+$') then
    return tonumber(text)
  end
end

-- plain reads free permits, written as INCRBY takes them. They are negative while more is granted than a rate that was
-- lowered since.
local function plain(text)
  if text and (text == '0' or string.find(text, '^-?[1-9]%d*$')) then
    return int(text) or text == '1000000000000000' and MOST or nil
  end
end

-- score reads the score of a record, which may be fractional or infinite.
local function score(text)
  return tonumber(text) or (text == '-inf' and -math.huge or math.huge)
end
