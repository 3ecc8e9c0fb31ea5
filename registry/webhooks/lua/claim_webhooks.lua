-- Take the webhooks of one slot, and fence who had them before.
--
-- KEYS  1 subscriptions (hash: OWNER NUL ID -> 24 characters of its turn, and its definition)
--       2 standings (hash: OWNER NUL ID -> how far it is)
--       3 fence (hash: generation, epoch: the lease of whoever delivers; version: rises with each change)
-- ARGV  1 generation of the leased stream
--       2 its lease epoch
--
-- Replies
--   {'held', version, {field, value, ...} of KEYS[1], the same of KEYS[2], generation and epoch of the lease
--    that had them before}
--   {'fenced'}   a newer lease has them

local fence = redis.call('HMGET', KEYS[3], 'generation', 'epoch', 'version')
local generation, epoch = tonumber(fence[1] or '0'), tonumber(fence[2] or '0')
if generation > tonumber(ARGV[1]) or (generation == tonumber(ARGV[1]) and epoch > tonumber(ARGV[2])) then
  return {'fenced'}
end
redis.call('HDEL', KEYS[3], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[3], 'generation', ARGV[1], 'epoch', ARGV[2])
return {'held', fence[3] or '0', redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]), generation, epoch}
