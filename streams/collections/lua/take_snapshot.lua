-- Let a snapshot that was written take the place of the one that it was made of.
--
-- KEYS  1 meta (hash) of the stream  2 snapshot (hash)  3 its entries (stream)  4 entries of the former one
--       5 log of the stream
-- ARGV  1 number of the former one, 0 if there was none
--       2 upto       the snapshot has all changes below this offset
--       3 token      part of the name of KEYS[3]
--       4 messages   in its entries
--       5 entries    how many they are
--       6 lost       what Redis lost below upto, as JSON
--       7 seconds    for which the entries of the former one stay: somebody may be reading them
--       8 offset     at or above upto: up to there the stream stands as it did before it was read
--       9 mark       'ID TIME' of the entry with the last change below that offset, as it was then; '': none
--
-- Replies
--   {'taken', number}
--   {'other', number}   the newest one is another: somebody else was faster
--   {'gone'}            the entries are not all there, or the stream is not as it was: Redis lost it
--   {'unknown'}         there is no such stream

local next = redis.call('HGET', KEYS[1], 'next')
if not next then
  return {'unknown'}
end
local expected, upto, entries, seconds = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[5]), tonumber(ARGV[7])
local offset = tonumber(ARGV[8])
if not (expected and upto and entries and seconds and offset) then
  return redis.error_reply('ERR take_snapshot: number, upto, entries, seconds and offset must be numbers')
end
local former = redis.call('HMGET', KEYS[2], 'number', 'upto')
local number = tonumber(former[1]) or 0
if number ~= expected or upto < (tonumber(former[2]) or 0) then
  return {'other', number}
end
if upto > tonumber(next) or redis.call('XLEN', KEYS[3]) ~= entries then
  return {'gone'}
end
local last = redis.call('XRANGE', KEYS[5], string.format('%.0f-0', math.max(0, offset - 1)), '+', 'COUNT', 1)[1]
if (last and last[1] .. ' ' .. last[2][2] or '') ~= ARGV[9] then
  return {'gone'}
end

redis.call('HDEL', KEYS[2], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[2], 'number', number + 1, 'upto', ARGV[2], 'token', ARGV[3], 'messages', ARGV[4],
  'entries', ARGV[5], 'lost', ARGV[6])
redis.call('PERSIST', KEYS[3])
if number > 0 then
  redis.call('EXPIRE', KEYS[4], ARGV[7])
end
return {'taken', number + 1}
