-- Let a snapshot that was written take the place of the one that it was made of.
--
-- KEYS  1 meta (hash) of the stream  2 snapshot (hash)  3 its entries (stream)  4 entries of the former one
-- ARGV  1 number of the former one, 0 if there was none
--       2 upto       the snapshot has all changes below this offset
--       3 token      part of the name of KEYS[3]
--       4 messages   in its entries
--       5 entries    how many they are
--       6 lost       what Redis lost below upto, as JSON
--       7 seconds    for which the entries of the former one stay: somebody may be reading them
--
-- Replies
--   {'taken', number}
--   {'other', number}   the newest one is another: somebody else was faster
--   {'gone'}            the entries are not all there, or the stream does not reach so far: Redis lost it
--   {'unknown'}         there is no such stream

local next = redis.call('HGET', KEYS[1], 'next')
if not next then
  return {'unknown'}
end
local expected, upto, entries, seconds = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[5]), tonumber(ARGV[7])
if not (expected and upto and entries and seconds) then
  return redis.error_reply('ERR take_snapshot: number, upto, entries and seconds must be numbers')
end
local former = redis.call('HMGET', KEYS[2], 'number', 'upto')
local number = tonumber(former[1]) or 0
if number ~= expected or upto < (tonumber(former[2]) or 0) then
  return {'other', number}
end
if upto > tonumber(next) or redis.call('XLEN', KEYS[3]) ~= entries then
  return {'gone'}
end

redis.call('HSET', KEYS[2], 'number', number + 1, 'upto', ARGV[2], 'token', ARGV[3], 'messages', ARGV[4],
  'entries', ARGV[5], 'lost', ARGV[6])
redis.call('PERSIST', KEYS[3])
if number > 0 then
  redis.call('EXPIRE', KEYS[4], ARGV[7])
end
return {'taken', number + 1}
