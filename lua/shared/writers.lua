-- writers.lua: the clients that wrote records.

-- origin_of returns the first bytes of the id of a record as a number, which tells its client: five bytes, or four in the
-- oldest format; -1 if the member has no known format.
local function origin_of(member)
  local length, head = #member, string.byte(member)
  local first, last
  if length == 8 then
    first, last = 1, 4
  elseif length >= 10 and head == length - 5 then
    first, last = 2, 6
  elseif (length == 20 or length == 24) and head == length - 12 then
    first, last = 9, 13
  else
    return -1
  end
  local number = 0
  for at = first, last do
    number = number * 256 + string.byte(member, at)
  end
  return number
end

-- find_writers looks for records of other clients. It returns the origin of one that another Go client wrote, else the
-- fallback; and whether there is one that no Go client wrote. Which Go client it returns depends on the id of the batch,
-- so that each of them is returned in time.
local function find_writers(members, prefix, fallback)
  local own, others, foreign = client_prefix(prefix), {}, false
  for i = 1, #members do
    if string.sub(members[i], 1, #own) ~= own then
      local origin = origin_of(members[i])
      local head = origin
      while head >= 65536 do
        head = math.floor(head / 256)
      end
      if head == 18287 then -- 'Go'
        others[#others + 1] = origin
      else
        foreign = true
      end
    end
  end
  return others[1] and others[1 + string.byte(prefix, -1) % #others] or fallback, foreign
end
