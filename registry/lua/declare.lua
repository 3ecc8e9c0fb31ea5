-- Declare a shared subscription unless it is declared already, and note that somebody wants it.
-- KEYS[1] declaration (string)  KEYS[2] progress (hash)  KEYS[3] counter of sessions
-- ARGV[1] declaration (JSON)  ARGV[2] the counter must not be below this one
-- Replies: the declaration that holds now
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local held = redis.call('GET', KEYS[1])
local joined = tonumber(redis.call('HGET', KEYS[2], '@joined') or '0')
local arrivals = tonumber(redis.call('GET', KEYS[3]) or '0')
if not held then
  redis.call('SET', KEYS[1], ARGV[1])
end
if arrivals < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[3], ARGV[2])
end
-- By the clock, so that no number comes a second time after the group was forgotten.
joined = math.max(joined + 1, time[1] * 1000000 + time[2])
redis.call('HSET', KEYS[2], '@active', now, '@joined', string.format('%.0f', joined))
return held or ARGV[1]
