-- after.lua: the prefix of a record whose id follows that of the given one. The id is a number that ends where the prefix
-- ends; the first byte tells the format and stays. A prefix without any such number, or with the last one, as only an
-- unknown hand writes it, grows: there is always a next one.
local function after(prefix)
  for at = #prefix, 2, -1 do
    local digit = string.byte(prefix, at)
    if digit < 255 then
      return string.sub(prefix, 1, at - 1) .. string.char(digit + 1) .. string.rep('\0', #prefix - at)
    end
  end
  return prefix .. '\0'
end
