-- Read some of the first entries of a log, and leave a mark behind them.
--
-- Whoever finds this mark later, on this server or on one that took its place, knows that all that was read is
-- there as it was read: what a server lost, it lost from the end, and the mark was written after it.
--
-- KEYS  1 meta (hash)  2 log (stream)
-- ARGV  1 the mark of those before these; '' begins
--       2 the mark
--       3 start and  4 count   of XRANGE
--
-- Replies
--   {'read', versions of the schema as JSON or '', entries}
--   {'moved'}      the mark of those before is not there any more
--   {'unknown'}    there is no such stream

local meta = redis.call('HMGET', KEYS[1], 'next', 'merging', 'schemas')
if not meta[1] then
  return {'unknown'}
end
if ARGV[1] ~= '' and meta[2] ~= ARGV[1] then
  return {'moved'}
end
local entries = redis.call('XRANGE', KEYS[2], ARGV[3], '+', 'COUNT', ARGV[4])
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], 'merging', ARGV[2])
return {'read', meta[3] or '', entries}
