-- The rows of one collection, and the change up to which they are so.
-- KEYS[1] rows (hash: key -> row)  KEYS[2] changes
-- KEYS[3] who lives (zset), where the rows are of somebody: until when, or when he was seen last (ms)
-- ARGV[1] for how many ms who was seen is alive; 0: it says until when
-- Replies: {newest change, {key, row, ...}, {whose rows do not count any more, ...}}; 0-0: there was none
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local over = {}
if KEYS[3] then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local limit = tonumber(ARGV[1])
  over = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('(%.0f', now - limit))
  if limit > 0 then
    -- from before the clock went back
    for _, one in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], string.format('(%.0f', now + limit), '+inf')) do
      over[#over + 1] = one
    end
  end
end
return {newest and newest[1] or '0-0', redis.call('HGETALL', KEYS[1]), over}
