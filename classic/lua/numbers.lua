-- numbers.lua parses numbers that other programs may have written, and decides what a call counts.
-- tonumber alone accepts 'nan', 'inf' and '0x10', and not the same texts on every server; on the
-- embedded server, arithmetic reads the text '010' as eight. Every script begins with this file. A
-- script that takes permits has one more argument for a charge, 'charge', as its last one.

-- TIMES bounds a stored number: up to TIMES times the highest number that this limiter writes is
-- accepted, because the limit may have been lowered, and other processes may still use the old one.
local TIMES = 10

-- DEBT bounds a debt that lasts until it is refilled: DEBT times the capacity. MOST bounds a count
-- of permits that expire, whatever their number: the largest number that int reads.
local DEBT = 10
local MOST = 2 ^ 53 - 1

-- taken returns how many of the wanted permits a call counts: all if so many are free, else none. A
-- charge counts them also if they are not free, but at most as many as there is room for.
local CHARGE = ARGV[#ARGV] == 'charge'
local function taken(wanted, free, room)
  if wanted <= free then
    return wanted
  end
  return CHARGE and math.max(0, math.floor(math.min(wanted, room))) or 0
end

-- int parses a whole number from -(2^53 - 1) to 2^53 - 1, which a double holds exactly, in the form
-- that Redis writes, the only one that INCRBY accepts. For any other text it returns nil.
local function int(text)
  if text == '0' or text and #text <= 17 and string.find(text, '^-?[1-9]%d*$') then
    local number = tonumber(text)
    return math.abs(number) < 2 ^ 53 and number or nil
  end
end

-- decimal parses a number of at most 15 digits, optionally followed by a point and more digits. For
-- any other text it returns nil.
local function decimal(text)
  local digits = text and #text <= 32 and string.match(text, '^-?(%d+)%.?%d*$')
  if digits and #digits <= 15 then
    return tonumber(text)
  end
end

-- float parses a number of at most 32 characters, which may have an exponent: some servers write
-- one. For any other text it returns nil, or false.
local function float(text)
  return text and #text <= 32 and string.find(text, '^-?%d+%.?%d*e?[+-]?%d*$') and tonumber(text)
end

-- whole formats a whole number for Redis: 7.2.0 to 7.2.4 write a number of a script with an
-- exponent if it has many zeros.
local function whole(number)
  return string.format('%.0f', number)
end

-- latest returns the latest time (ms) that another client may have written: clocks may differ by up
-- to a minute, or by a period if that is longer.
local function latest(now, period)
  return now + math.max(60000, period)
end

