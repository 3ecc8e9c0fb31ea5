-- Tell a stream the versions of its space's schema; it takes entries of the newest one from then on.
--
-- KEYS  1 meta (hash)
-- ARGV  1 how many versions the schema has
--       2 fingerprint of the newest version
--       3 all versions as JSON
--
-- Replies
--   {'set'}
--   {'known', versions}   the stream knows as many, or more
--   {'unknown'}           there is no such stream

local meta = redis.call('HMGET', KEYS[1], 'next', 'schema_versions')
if not meta[1] then
  return {'unknown'}
end
local known = tonumber(meta[2] or '0')
if known >= tonumber(ARGV[1]) then
  return {'known', known}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], 'schema_versions', ARGV[1], 'schema', ARGV[2], 'schemas', ARGV[3])
return {'set'}
