-- Give leadership up. The term stays in the record, so that the next one is higher.
-- KEYS[1] leadership record
-- ARGV[1] host  ARGV[2] term
-- Replies: 1 resigned; 0 another term or host stands there, nothing was changed
local held = redis.call('HMGET', KEYS[1], 'term', 'host')
if held[1] ~= ARGV[2] or held[2] ~= ARGV[1] then
  return 0
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], 'host', '', 'mailbox', '', 'renewed_at', '0')
redis.call('PUBLISH', (string.gsub(KEYS[1], ':leader$', ':news')), 'leader')
return 1
