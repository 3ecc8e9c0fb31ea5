-- Write or remove the definition of one space, if no definition changed since the caller looked.
--
-- KEYS  1 definitions (hash)  2 generations (hash)  3 version (string)  4 changes of the catalog (stream)
--       5 topics (hash)  6 their order (zset)
-- ARGV  1 version that the caller saw, 0 if there was none
--       2 name of the space
--       3 definition as JSON; empty to remove the space
--       4 highest generation that the space ever used
--       5 news channel  6 channel of the catalog
--
-- Replies
--   {'written', new version}
--   {'changed', version}        somebody else was faster: look again
-- include: streamlease.streams.catalog/tell
-- include: streamlease.streams.spaces/forget_topics

local version = redis.call('GET', KEYS[3]) or '0'
if version ~= ARGV[1] then
  return {'changed', tonumber(version)}
end
local former = redis.call('HGET', KEYS[1], ARGV[2]) or ''
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
else
  redis.call('HDEL', KEYS[1], ARGV[2])
  forget_topics(KEYS[5], KEYS[6], KEYS[4], ARGV[6], ARGV[2])
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[4])
redis.call('PUBLISH', ARGV[5], ARGV[2])
tell(KEYS[4], ARGV[6], 'spaces', ARGV[2], former, ARGV[3])
return {'written', redis.call('INCR', KEYS[3])}
