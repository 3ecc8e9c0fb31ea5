-- Declare a shared subscription unless it is declared already, and note that somebody wants it.
-- KEYS[1] declaration (string)  KEYS[2] progress (hash)
-- ARGV[1] declaration (JSON)
-- Replies: the declaration that holds now
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local held = redis.call('GET', KEYS[1])
if not held then
  redis.call('SET', KEYS[1], ARGV[1])
end
redis.call('HSET', KEYS[2], '@active', now)
return held or ARGV[1]
