-- Note of a new space with epochs in which lineage of the data it was made. enter.lua compares it, and so do readers,
-- before anybody has entered or kept the space.
--
-- KEYS  1 writers (hash)  2 state (hash)
-- ARGV  none
--
-- Replies: 1 noted; 0 it was noted before, or the server does not tell

-- include: streamlease.streams.redis/lineage

local lineage = lineage_here()
if lineage == '' or redis.call('HGET', KEYS[1], '!lineage') then
  return 0
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], '!lineage', lineage)
redis.call('HSET', KEYS[2], 'lineage', lineage)
return 1
