-- Tell a stream that messages of the streams that it follows are gone, and how new the newest of them was.
--
-- KEYS  1 meta (hash)
-- ARGV  1 append time of that message, in microseconds
--
-- Replies
--   {'told'}
--   {'known'}      it knows of a message as new, or a newer one
--   {'unknown'}    there is no such stream

local meta = redis.call('HMGET', KEYS[1], 'next', 'trimmed_at')
if not meta[1] then
  return {'unknown'}
end
if (tonumber(meta[2]) or 0) >= tonumber(ARGV[1]) then
  return {'known'}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], 'trimmed_at', ARGV[1])
return {'told'}
