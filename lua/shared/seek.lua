-- seek.lua looks for the records that an earlier attempt of a call has written, whose answer was lost.
--
-- takes  records; prefix, the bytes before the permits of the first of them; ids, how many there can be; first, the time of
--        that attempt, or one before it; whole, the record if all was granted, or nil; shared, whether other calls of the
--        client join its records, and then the ids tell shares; before, the last three bytes of ids of the client that
--        such records had before that attempt, as numbers between blanks
-- sets   sought, the records; nil if nobody can tell any more which these are; share, the permits in them that are the
--        call's
--
-- It looks at so many records from that time on.
local SOUGHT, PAGE = 20000, 1000
--@include own
--@include permits
--@include after
local sought, share = {}, 0

local function seek()
  local score = whole and call('ZSCORE', records, whole)
  if score then
    if tonumber(score) < first then
      return nil -- an older grant has this id: then the one that is looked for got another
    end
    share = permits(whole)
    return { whole }
  end
  local wanted, id = {}, prefix
  for _ = 1, ids do
    wanted[shared and string.sub(id, #mine + 5) or id] = true
    id = after(id)
  end
  local found, others, released = {}, false, false
  local rank = call('ZCOUNT', records, '-inf', string.format('(%.0f', first))
  for _ = 1, SOUGHT / PAGE do
    local page = call('ZRANGE', records, rank, rank + PAGE - 1)
    for i = 1, #page do
      local member = page[i]
      if #member == #prefix + 4 and string.sub(member, 1, #mine) == mine then
        if wanted[string.sub(member, shared and #mine + 5 or 1, -5)] then
          found[#found + 1] = member
          share = share + permits(shared and string.sub(member, 1, #mine + 4) or member)
          released = shared and share > permits(member)
        else
          local a, b, c = string.byte(member, -7, -5)
          local id = string.format(' %.0f ', a * 65536 + b * 256 + c)
          others = others or not find(before, id, 1, true)
        end
      end
    end
    if #found == ids or #page < PAGE then
      -- A later call may have joined the record and given it its own id. The share of several records is in none of them.
      if shared and (#found == 0 and others or ids > 1 or released) then
        return nil
      end
      return found
    end
    rank = rank + PAGE
  end
  return nil
end
sought = seek()
