-- The rows of one collection, and the change up to which they are so.
-- KEYS[1] rows (hash: key -> row)  KEYS[2] changes  KEYS[3] processes (zset), where the rows are of processes
-- ARGV none
-- Replies: {newest change, {key, row, ...}, {process whose lease is over, ...}}; 0-0: there was none
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local over = {}
if KEYS[3] then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  over = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('(%.0f', now))
end
return {newest and newest[1] or '0-0', redis.call('HGETALL', KEYS[1]), over}
