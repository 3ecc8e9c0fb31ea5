-- Serve a member from now on: the first time, or in place of the gateway that served it until now.
-- KEYS[1] member (hash, see registry/keys.py)  KEYS[2] counter of sessions  KEYS[3] progress (hash)
-- ARGV[1] the arrival by which it is served now; empty: it must not be there yet
-- ARGV[2] gateway  ARGV[3] its address  ARGV[4] how long (ms) the member lasts without a sign of life
-- ARGV[5...] more fields and their values
-- Replies: the new arrival, by which all others are refused; 0: it is served by another arrival, or is gone
local known = redis.call('HGET', KEYS[1], 'arrival') or ''
if known ~= ARGV[1] then
  return 0
end
redis.call('HDEL', KEYS[3], '')  -- needs no memory, see streams/redis/scripts.py
local arrival = redis.call('INCR', KEYS[2])
redis.call('HSET', KEYS[1], 'arrival', string.format('%.0f', arrival), 'gateway', ARGV[2], 'address', ARGV[3],
  unpack(ARGV, 5))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return arrival
