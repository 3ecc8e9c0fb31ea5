-- A keeper begins: what another one with a lower term writes is refused from now on.
--
-- KEYS  1 state (hash)
-- ARGV  1 term of the keeper
--
-- Replies
--   {'taken'}
--   {'fenced', term}   another keeper has a higher term

-- include: streamlease.streams.redis/lineage

local term = tonumber(redis.call('HGET', KEYS[1], 'term') or 0)
if term > tonumber(ARGV[1]) then
  return {'fenced', term}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], 'term', ARGV[1], 'lineage', (lineage_here()))
return {'taken'}
