-- find_attempt.lua: what an earlier attempt of the same request was granted, if its reply was lost.
local MAX_SEARCHED, SEARCH_PAGE = 20000, 1000 -- records

-- find_attempt returns the records that an earlier attempt wrote, and the permits in them that are
-- the request's; an empty list if it wrote none, nil if that is no longer known. The arguments:
-- records, the key; prefix, of the first record; id_count, how many ids the request has; since, the
-- time of that attempt or an earlier one; whole, the record if all was granted, or nil; shared,
-- whether other requests of the client join its records (then their ids hold shares); recent, the
-- last three bytes of the ids that such records had before that attempt, as numbers between blanks.
local function find_attempt(records, prefix, id_count, since, whole, shared, recent)
  local score = whole and call('ZSCORE', records, whole)
  if score then
    if tonumber(score) < since then
      return nil -- an older grant has this id, so the one that is searched has another
    end
    return { whole }, permits_of(whole)
  end
  local own = client_prefix(prefix)
  local wanted, id = {}, prefix
  for _ = 1, id_count do
    wanted[shared and string.sub(id, #own + 5) or id] = true
    id = next_prefix(id)
  end
  local found, share, others, released = {}, 0, false, false
  local rank = call('ZCOUNT', records, '-inf', string.format('(%.17g', since))
  for _ = 1, MAX_SEARCHED / SEARCH_PAGE do
    local page = call('ZRANGE', records, rank, rank + SEARCH_PAGE - 1)
    for i = 1, #page do
      local member = page[i]
      if #member == #prefix + 4 and string.sub(member, 1, #own) == own then
        if wanted[string.sub(member, shared and #own + 5 or 1, -5)] then
          found[#found + 1] = member
          share = share + permits_of(shared and string.sub(member, 1, #own + 4) or member)
          released = shared and share > permits_of(member)
        else
          local a, b, c = string.byte(member, -7, -5)
          others = others or not find(recent, string.format(' %.0f ', a * 65536 + b * 256 + c), 1, true)
        end
      end
    end
    if #found == id_count or #page < SEARCH_PAGE then
      -- A later request may have joined the record and changed its id. No id holds the share of
      -- several records.
      if shared and (#found == 0 and others or id_count > 1 or released) then
        return nil
      end
      return found, share
    end
    rank = rank + SEARCH_PAGE
  end
  return nil
end

-- refresh_scores raises the scores of records to a score: a grant must not be older than its reply.
-- A record may be gone, as a surplus. All keys of the script have been read before, so that nothing
-- fails afterwards.
local function refresh_scores(records, members, score)
  for i = 1, #members do
    local before = call('ZSCORE', records, members[i])
    if before and tonumber(before) < score then
      call('ZADD', records, 'XX', score, members[i])
    end
  end
end
