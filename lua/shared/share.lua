-- share.lua writes into the id of a record how many of its permits a call was granted, so that this is known though the
-- record holds those of others, too.
--
-- takes  prefix, the bytes before the permits; taken, the permits of the call
-- sets   prefix
do
  --@include own
  --@include bytes
  prefix = mine .. bytes(taken) .. string.sub(prefix, #mine + 5)
end
