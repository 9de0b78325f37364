-- origin.lua reads the first bytes of a record's id as one number, by which a client knows its own kind: five of them, or
-- the four of the oldest format; -1 where the member has no known form. Formats: pack.go.
local function originOf(member)
  local length, head = #member, string.byte(member)
  local from, to
  if length == 8 then
    from, to = 1, 4
  elseif length >= 10 and head == length - 5 then
    from, to = 2, 6
  elseif (length == 20 or length == 24) and head == length - 12 then
    from, to = 9, 13
  else
    return -1
  end
  local number = 0
  for at = from, to do
    number = number * 256 + string.byte(member, at)
  end
  return number
end

-- strangers looks among records for such whose id does not start as this client's do, and answers the origin of one of
-- another Go client, or what is given; and whether there is one that is no Go client's. Which one it answers goes by the
-- number in the caller's prefix, which is another one in each call: so a caller hears of all of them in time.
local function strangers(walked, prefix, found)
  --@include own
  local gos, other = {}, false
  for i = 1, #walked do
    if string.sub(walked[i], 1, #mine) ~= mine then
      local from = originOf(walked[i])
      local mark = from
      while mark >= 65536 do
        mark = math.floor(mark / 256)
      end
      if mark == 18287 then -- 'Go'
        gos[#gos + 1] = from
      else
        other = true
      end
    end
  end
  return gos[1] and gos[1 + string.byte(prefix, -1) % #gos] or found, other
end
