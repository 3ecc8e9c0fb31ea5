-- Say which host is to follow the leader, if it gives leadership up within some moments: nobody else claims it then.
-- KEYS[1] leadership record
-- ARGV[1] host that is to follow  ARGV[2] term of the leader  ARGV[3] for how many ms, 10000 at most
-- Replies: 1 it is said; 0 another term stands there, or another host is to follow
-- include: streamlease.registry/term
local held = redis.call('HMGET', KEYS[1], 'term', 'heir', 'heir_until')
if held[1] ~= ARGV[2] then
  return 0
end
local now = now_ms()
local left = held[2] and held[2] ~= ARGV[1] and (tonumber(held[3]) or 0) - now or 0
if left > 0 and left <= 10000 then
  return 0
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], 'heir', ARGV[1], 'heir_until', string.format('%.0f', now + tonumber(ARGV[3])))
return 1
