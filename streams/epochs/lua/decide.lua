-- Decide up to which line the next boundary folds.
--
-- KEYS  1 state (hash)  2 lines (stream)
-- ARGV  1 term of the keeper
--       2 number of the boundary
--       3 upto   the number of a line
--       4 stamp  when that line was written
--
-- Replies
--   {'decided', upto}        by this call, or before: that decision holds
--   {'fenced', term}         another keeper has a higher term
--   {'other', boundary}      the newest boundary is not the one before, or the lines are others

-- include: streamlease.streams.epochs/same_lines

local it = redis.call('HMGET', KEYS[1], 'term', 'boundary', 'pending')
local term = tonumber(it[1] or 0)
if term > tonumber(ARGV[1]) then
  return {'fenced', term}
end
local number = tonumber(ARGV[2])
local newest = tonumber(it[2] or 0)
if newest ~= number - 1 or not same_lines(KEYS[1], KEYS[2], ARGV[3], ARGV[4]) then
  return {'other', newest}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], 'term', ARGV[1])
if it[3] then
  return {'decided', tonumber(string.match(it[3], ' (%d+)$'))}
end
redis.call('HSET', KEYS[1], 'pending', ARGV[2] .. ' ' .. ARGV[3])
return {'decided', tonumber(ARGV[3])}
