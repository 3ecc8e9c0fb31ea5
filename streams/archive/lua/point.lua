-- Let the table of an archive be what a metadata file of it says, if it is still what the caller has seen.
--
-- KEYS  1 table (hash)
-- ARGV  1 address of the metadata file that the caller has seen; empty: none  2 address of the new one
--
-- Replies
--   {'pointed'}
--   {'moved', address}    somebody else was faster

local now = redis.call('HGET', KEYS[1], 'metadata') or ''
if now ~= ARGV[1] then
  return {'moved', now}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], 'metadata', ARGV[2], 'before', ARGV[1])
return {'pointed'}
