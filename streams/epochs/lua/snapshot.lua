-- Keep a snapshot of the fold, and forget the lines that it makes dispensable.
--
-- KEYS  1 state (hash)  2 lines (stream)
-- ARGV  1 term of the keeper
--       2 folded    the last line in it
--       3 the snapshot as JSON
--       4 boundary  the last one in it
--       5 stamp     when the line `folded` was written
--
-- Replies
--   {'kept'}           by this call; or a newer one is there: this call comes late
--   {'fenced', term}   another keeper has a higher term
--   {'other', boundary}   the newest boundary is another, or the lines are others: Redis lost some

-- include: streamlease.streams.epochs/same_lines

local it = redis.call('HMGET', KEYS[1], 'term', 'folded', 'boundary')
local term = tonumber(it[1] or 0)
if term > tonumber(ARGV[1]) then
  return {'fenced', term}
end
if tonumber(it[2] or 0) > tonumber(ARGV[2]) then
  return {'kept'}
end
local newest = tonumber(it[3] or 0)
if newest ~= tonumber(ARGV[4]) or not same_lines(KEYS[1], KEYS[2], ARGV[2], ARGV[5]) then
  return {'other', newest}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], 'term', ARGV[1], 'folded', ARGV[2], 'snapshot', ARGV[3], 'stamp', ARGV[5])
redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f', tonumber(ARGV[2]) + 1) .. '-0')
return {'kept'}
