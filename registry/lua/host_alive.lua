-- A leader host shows that it is alive, or leaves; hosts silent for longer than the limit are forgotten.
-- KEYS[1] zset of hosts  KEYS[2] hash of host descriptions  KEYS[3] changes of the catalog (stream)
-- ARGV[1] host  ARGV[2] description (JSON); empty: it leaves  ARGV[3] limit in ms  ARGV[4] channel of the catalog
-- Replies: number of hosts alive
-- include: streamlease.streams.catalog/tell
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit = tonumber(ARGV[3])
redis.call('HDEL', KEYS[2], '')  -- needs no memory, see streams/redis/scripts.py
local function forget_host(host)
  local former = redis.call('HGET', KEYS[2], host) or ''
  redis.call('ZREM', KEYS[1], host)
  redis.call('HDEL', KEYS[2], host)
  tell(KEYS[3], ARGV[4], 'hosts', host, former, '')
end
local function forget(first, last)
  for _, host in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], first, last)) do
    forget_host(host)
  end
end
forget('-inf', string.format('(%.0f', now - limit))
forget(string.format('(%.0f', now + limit), '+inf')  -- from before the clock went back
if ARGV[2] == '' then
  forget_host(ARGV[1])
  return redis.call('ZCARD', KEYS[1])
end
local former = redis.call('HGET', KEYS[2], ARGV[1]) or ''
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
tell(KEYS[3], ARGV[4], 'hosts', ARGV[1], former, ARGV[2])
return redis.call('ZCARD', KEYS[1])
