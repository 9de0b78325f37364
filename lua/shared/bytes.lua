-- bytes.lua writes permits as a record has them: four bytes, least significant first; at most what these hold.
local function bytes(n)
  n = math.min(n, 4294967295)
  local b, c = math.floor(n / 256), math.floor(n / 65536)
  return string.char(n % 256, b % 256, c % 256, math.floor(c / 256))
end
