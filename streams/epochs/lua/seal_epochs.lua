-- The space takes no more: nobody enters any more, and all that was given up completes.
--
-- KEYS  1 writers (hash)  2 lines (stream)
-- ARGV  1 news channel
--       2 the line as JSON
--
-- Replies
--   {'sealed', number of the line}   by this call, or before
--   {'here', name ...}               these publishers are there, and hold epochs open

-- include: streamlease.streams.epochs/writer

redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
local sealed = redis.call('HGET', KEYS[1], '!sealed')
if sealed then
  -- A write, so that WAIT or WAITAOF behind a repetition covers the first call.
  redis.call('HSET', KEYS[1], '!sealed', sealed)
  return {'sealed', tonumber(sealed)}
end
local here = who_is_here(KEYS[1])
if #here > 0 then
  return {'here', unpack(here, 1, math.min(#here, 1000))}
end
local number = write_line(KEYS[1], KEYS[2], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[1], '!sealed', string.format('%.0f', number))
return {'sealed', number}
