-- A leader host shows that it is alive; hosts silent for longer than the limit are forgotten.
-- KEYS[1] zset of hosts  KEYS[2] hash of host descriptions
-- ARGV[1] host  ARGV[2] description (JSON)  ARGV[3] limit in ms
-- Replies: number of hosts alive
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit = tonumber(ARGV[3])
local function forget(first, last)
  for _, host in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], first, last)) do
    redis.call('ZREM', KEYS[1], host)
    redis.call('HDEL', KEYS[2], host)
  end
end
forget('-inf', string.format('(%.0f', now - limit))
forget(string.format('(%.0f', now + limit), '+inf')  -- from before the clock went back
redis.call('HDEL', KEYS[2], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
