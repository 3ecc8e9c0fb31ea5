-- A write without effect, so that WAIT or WAITAOF behind it covers what was written before.
--
-- KEYS  1 definitions (hash)  2 version (string)
-- ARGV  none
--
-- Replies: the version

redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
return redis.call('INCRBY', KEYS[2], 0)
