-- Put one entry in the place of the first entries of a log.
--
-- The entry holds the same messages under the same offsets, and stands in a stream of its own, which ends where
-- the log begins. The mark says that the entries which it replaces are still what they were when they were read
-- (read_run.lua). If it is not there, or the log does not begin with them any more, nothing is done.
--
-- KEYS  1 meta (hash)  2 log (stream)  3 merged (stream)
-- ARGV  1 id of the first entry that is replaced
--       2 id of the last one       the same: the one entry is moved as it is, and there is no other argument
--       3 the mark behind them
--       4 their bytes, fields and values
--       5... field, value   of the entry, its append time among them
--
-- Replies
--   {'merged', bytes of the stream}
--   {'moved'}      the log does not begin with them, or they may be others
--   {'unknown'}    there is no such stream

local meta = redis.call('HMGET', KEYS[1], 'next', 'bytes', 'merging')
if not meta[1] then
  return {'unknown'}
end
local first, many = string.match(ARGV[1], '^(%d+)%-(%d+)$')
local last = string.match(ARGV[2], '^(%d+)%-%d+$')
local alone = ARGV[1] == ARGV[2]
if not first or not last or not (alone or (#ARGV > 5 and #ARGV % 2 == 0 and tonumber(ARGV[4]))) then
  return redis.error_reply('ERR merge: it takes the ids of entries, and the fields of one')
end
local one = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
if not one or one[1] ~= ARGV[1] or not (alone or meta[3] == ARGV[3]) then
  return {'moved'}
end
local size = tonumber(meta[2]) or 0
if not alone then
  size = size - tonumber(ARGV[4])
  for i = 5, #ARGV do
    size = size + #ARGV[i]
  end
end
local border = string.format('%.0f', tonumber(last) + 1)
local id = string.format('%s-%.0f', last, tonumber(last) - tonumber(first) + tonumber(many))
size = string.format('%.0f', math.max(0, size))

redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py: what is replaced takes more
if alone then
  redis.call('XADD', KEYS[3], id, unpack(one[2]))
else
  redis.call('XADD', KEYS[3], id, unpack(ARGV, 5))
end
redis.call('XTRIM', KEYS[2], 'MINID', border .. '-0')
redis.call('HSET', KEYS[1], 'merged', border, 'bytes', size)
redis.call('HDEL', KEYS[1], 'merging')
return {'merged', tonumber(size)}
