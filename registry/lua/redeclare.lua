-- Replace a declaration, unless somebody changed it meanwhile.
-- KEYS[1] declaration (string)  KEYS[2] progress (hash)
-- ARGV[1] declaration that was read (JSON)  ARGV[2] the one that takes its place (JSON)
-- Replies: 1 replaced; 0 another declaration, or none, stands there, and nothing was changed
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('HDEL', KEYS[2], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('SET', KEYS[1], ARGV[2])
return 1
