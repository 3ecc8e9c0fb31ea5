-- Note that an archive is to be removed, with its space.
--
-- KEYS  1 archives left (hash)
-- ARGV  1 which  2 what is to be removed
--
-- Replies
--   {'noted'}

redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return {'noted'}
