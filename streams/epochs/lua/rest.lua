-- Let nobody enter for some time, or let publishers enter again: the space gets other streams meanwhile.
--
-- KEYS  1 writers (hash)
-- ARGV  1 milliseconds from now; '0': they may enter again
--
-- Replies
--   {'resting'}      nobody is there, and nobody enters until then
--   {'over'}         they may enter again
--   {'here', name ...}   these publishers are there: nothing is changed

-- include: streamlease.streams.epochs/writer

if ARGV[1] == '0' then
  redis.call('HDEL', KEYS[1], '!resting')
  return {'over'}
end
local here = who_is_here(KEYS[1])
if #here > 0 then
  return {'here', unpack(here, 1, math.min(#here, 1000))}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], '!resting', string.format('%.0f', tonumber(now_ms()) + tonumber(ARGV[1])))
return {'resting'}
