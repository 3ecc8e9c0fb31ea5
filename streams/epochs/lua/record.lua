-- Record a boundary that was decided, and whose messages are in their streams.
--
-- KEYS  1 state (hash)  2 bounds (stream)  3 ends (hash)  4 lines (stream)
-- ARGV  1 term of the keeper
--       2 number of the boundary
--       3 the boundary as JSON
--       4 news channel
--       5 upto   the number of the line up to which it folds
--       6 stamp  when that line was written
--       7... stream, end   of the streams that changed
--
-- Replies
--   {'recorded'}             by this call, or before
--   {'fenced', term}         another keeper has a higher term
--   {'other', boundary}      it was not decided, or Redis lost that, or lines; the newest boundary is this

-- include: streamlease.streams.epochs/same_lines
-- include: streamlease.streams.redis/lineage

local it = redis.call('HMGET', KEYS[1], 'term', 'boundary', 'pending')
local term = tonumber(it[1] or 0)
if term > tonumber(ARGV[1]) then
  return {'fenced', term}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
local newest = tonumber(it[2] or 0)
if newest == tonumber(ARGV[2]) then
  -- A write, so that WAIT or WAITAOF behind a repetition covers the first call.
  redis.call('HSET', KEYS[1], 'boundary', ARGV[2])
  return {'recorded'}
end
if it[3] ~= ARGV[2] .. ' ' .. ARGV[5] or not same_lines(KEYS[1], KEYS[4], ARGV[5], ARGV[6]) then
  return {'other', newest}
end
local time = redis.call('TIME')
redis.call('XADD', KEYS[2], ARGV[2] .. '-0', 'b', ARGV[3], 't', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
for i = 7, #ARGV, 2 do
  redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
end
redis.call('HSET', KEYS[1], 'boundary', ARGV[2], 'lineage', (lineage_here()))
redis.call('HDEL', KEYS[1], 'pending')
redis.call('PUBLISH', ARGV[4], 'boundary ' .. ARGV[2])
return {'recorded'}
