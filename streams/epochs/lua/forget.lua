-- Forget the oldest boundaries, and remember where the streams ended at the last one of them.
--
-- KEYS  1 bounds (stream)  2 base (hash)  3 state (hash)
-- ARGV  1 term of the keeper
--       2 number of the first boundary that stays
--       3... stream, end   as they were at the boundary before that, of streams that the forgotten ones changed
--
-- Replies
--   {'forgotten', boundaries}   none if they were forgotten before: this call comes late
--   {'fenced', term}   another keeper has a higher term

local term = tonumber(redis.call('HGET', KEYS[3], 'term') or 0)
if term > tonumber(ARGV[1]) then
  return {'fenced', term}
end
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not first or tonumber(string.match(first[1], '^%d+')) >= tonumber(ARGV[2]) then
  return {'forgotten', 0}
end
redis.call('HDEL', KEYS[2], '')  -- needs no memory, see streams/redis/scripts.py
for i = 3, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
return {'forgotten', redis.call('XTRIM', KEYS[1], 'MINID', ARGV[2] .. '-0')}
