-- End a member, or free it for others to serve; only for who serves it.
-- KEYS[1] member (hash, see registry/keys.py)
-- ARGV[1] the arrival by which it is served  ARGV[2] 1: it ends, 0: others may serve it
-- Replies: 1; 0: it is served by another arrival, or is gone, and nothing was changed
if redis.call('HGET', KEYS[1], 'arrival') ~= ARGV[1] then
  return 0
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
if ARGV[2] == '1' then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'gateway', '', 'address', '')
end
return 1
