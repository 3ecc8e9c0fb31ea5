-- Put a shared subscription into the set of all, where it is missing though it is declared.
-- KEYS[1] declaration (string)  KEYS[2] set of all subscriptions
-- ARGV[1] the subscription, as it stands in the set
-- Replies: 1 it was missing; 0 it was there, or is not declared
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then
  return 0
end
redis.call('SREM', KEYS[2], '')  -- needs no memory, see streams/redis/scripts.py
return redis.call('SADD', KEYS[2], ARGV[1])
