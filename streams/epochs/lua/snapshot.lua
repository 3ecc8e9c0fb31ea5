-- Keep a snapshot of the fold, and forget the lines that it makes dispensable.
--
-- KEYS  1 state (hash)  2 lines (stream)
-- ARGV  1 term of the keeper
--       2 folded    the last line in it
--       3 the snapshot as JSON
--
-- Replies
--   {'kept'}           by this call; or a newer one is there: this call comes late
--   {'fenced', term}   another keeper has a higher term

local it = redis.call('HMGET', KEYS[1], 'term', 'folded')
local term = tonumber(it[1] or 0)
if term > tonumber(ARGV[1]) then
  return {'fenced', term}
end
if tonumber(it[2] or 0) > tonumber(ARGV[2]) then
  return {'kept'}
end
redis.call('HSET', KEYS[1], 'term', ARGV[1], 'folded', ARGV[2], 'snapshot', ARGV[3])
redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f', tonumber(ARGV[2]) + 1) .. '-0')
return {'kept'}
