-- Which unbroken past of the data a server has (see registry/leadership.py). Whatever asks that in a script
-- includes this file.
-- KEYS none  ARGV none
-- Replies: those of `lineage_here` are a replication id, and whether the server was a replica before

-- The lineage of the data that this server has, and whether it was a replica before; '' if it does not tell.
local function lineage_here()
  local info = redis.pcall('INFO', 'replication')
  if type(info) ~= 'string' then
    return '', false
  end
  local promoted = string.find(string.match(info, 'master_replid2:(%x+)') or '', '[^0]') ~= nil
  return string.match(info, 'master_replid:(%x+)') or '', promoted
end
