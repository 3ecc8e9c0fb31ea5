-- Give out no offset again that a reader has seen: Redis may have lost the messages that had them.
--
-- KEYS  1 meta (hash)
-- ARGV  1 the offset up to which messages were read
--       2 news channel
--
-- Replies
--   {'fine',   next offset}         the stream goes on at or behind that offset, or takes nothing more
--   {'raised', former next offset}  from now on it does; what is left out was lost
--   {'unknown'}                     there is no such stream

local meta = redis.call('HMGET', KEYS[1], 'next', 'state')
if not meta[1] then
  return {'unknown'}
end
local next = tonumber(meta[1])
if meta[2] ~= 'open' and meta[2] ~= 'epochs' or next >= tonumber(ARGV[1]) then
  return {'fine', next}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], 'next', ARGV[1])
redis.call('PUBLISH', ARGV[2], ARGV[1])
return {'raised', next}
