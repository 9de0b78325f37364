-- numbers.lua reads numbers that somebody else wrote, and never trusts them. tonumber alone takes 'nan', 'inf' and '0x10',
-- and not the same ones on every server. Every script begins with it.

-- int reads a whole number of at most 15 characters, else answers nil.
local function int(text)
  if text and #text <= 15 and string.find(text, '^-?%d+$') then
    return tonumber(text)
  end
end

-- decimal reads a number that is written with digits and at most one point, else answers nil.
local function decimal(text)
  if text and #text <= 32 and string.find(text, '^-?%d+%.?%d*$') then
    return tonumber(text)
  end
end

-- whole writes a whole number.
local function whole(number)
  return string.format('%.0f', number)
end

