-- Count a session of a shared subscription.
-- KEYS[1] counter of sessions  KEYS[2] progress (hash)
-- ARGV none
-- Replies: the number of the session
redis.call('HDEL', KEYS[2], '')  -- needs no memory, see streams/redis/scripts.py
return redis.call('INCR', KEYS[1])
