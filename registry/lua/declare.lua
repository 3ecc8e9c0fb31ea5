-- Declare a shared subscription, or take the declaration that was read for the one that holds, and note that
-- somebody wants it.
-- KEYS[1] declaration (string)  KEYS[2] progress (hash)  KEYS[3] counter of sessions
-- KEYS[4] leadership record: keeps the lineage of the data in which the declaration was made, see claim.lua
-- KEYS[5] set of all subscriptions; on a cluster it lies in another slot and is left out
-- ARGV[1] the declaration that was read; empty if there was none  ARGV[2] the one that holds from now on
-- ARGV[3] the counter must not be below this one  ARGV[4] the subscription, as it stands in the set
-- Replies: 1 it holds; 0 another one, or none, stands there, and nothing was changed: read it again
-- include: streamlease.streams.redis/lineage
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local joined = tonumber(redis.call('HGET', KEYS[2], '@joined') or '0') or 0
local arrivals = tonumber(redis.call('GET', KEYS[3]) or '0') or 0
local lineage = ''
if ARGV[1] == '' then
  redis.call('HLEN', KEYS[4])  -- ends here, before anything is written, if that is no record
  lineage = lineage_here()
end
redis.call('HDEL', KEYS[2], '')  -- needs no memory, see streams/redis/scripts.py
if KEYS[5] then
  redis.call('SADD', KEYS[5], ARGV[4])
end
if ARGV[1] == '' then
  redis.call('SET', KEYS[1], ARGV[2])
end
if lineage ~= '' then
  redis.call('HSET', KEYS[4], 'declared', lineage)
end
if arrivals < tonumber(ARGV[3]) then
  redis.call('SET', KEYS[3], ARGV[3])
end
-- By the clock, so that no number comes a second time after the group was forgotten.
joined = math.max(joined + 1, time[1] * 1000000 + time[2])
redis.call('HSET', KEYS[2], '@active', now, '@joined', string.format('%.0f', joined))
if ARGV[1] == '' then
  redis.call('PUBLISH', 'sl:{groups}:news', ARGV[4])
end
return 1
