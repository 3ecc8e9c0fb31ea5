-- Close a stream for good: what is in it stays readable, nothing more can be appended.
--
-- KEYS  1 meta (hash)  2 perhaps the messages that are staged for it, by epoch (hash): it is sealed if there are none
-- ARGV  1 news channel
--
-- Replies
--   {'sealed', next offset}     now, or already before
--   {'staged'}                  messages are staged for it; nothing is changed
--   {'unknown'}                 there is no such stream

local meta = redis.call('HMGET', KEYS[1], 'next', 'state')
if not meta[1] then
  return {'unknown'}
end
if KEYS[2] and meta[2] ~= 'sealed' and redis.call('HLEN', KEYS[2]) > 0 then
  return {'staged'}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
-- A write even if it is sealed, so that WAIT or WAITAOF behind a repetition covers the first attempt.
redis.call('HSET', KEYS[1], 'state', 'sealed')
if meta[2] ~= 'sealed' then
  redis.call('PUBLISH', ARGV[1], meta[1])
end
return {'sealed', tonumber(meta[1])}
