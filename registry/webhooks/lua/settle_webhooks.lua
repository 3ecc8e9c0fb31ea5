-- Say how far webhooks of one slot are.
--
-- KEYS  1 subscriptions, 2 standings, 3 fence: see claim_webhooks.lua
-- ARGV  1 generation and
--       2 epoch of the lease under which they were delivered
--       3... of each webhook: OWNER NUL ID, the turn of its definition, its standing
--
-- Replies
--   {'held', version, 1 or 0 of each}   0: it was changed or deleted meanwhile, and nothing is kept
--   {'fenced'}                          nothing is kept: a newer lease has them

local held = redis.call('HMGET', KEYS[3], 'generation', 'epoch', 'version')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
  return {'fenced'}
end
local reply, fields = {'held', held[3] or '0'}, {}
for place = 3, #ARGV, 3 do
  local known = redis.call('HGET', KEYS[1], ARGV[place])
  local same = known and string.sub(known, 1, 24) == ARGV[place + 1]
  reply[#reply + 1] = same and 1 or 0
  if same then
    fields[#fields + 1] = ARGV[place]
    fields[#fields + 1] = ARGV[place + 2]
  end
end
redis.call('HDEL', KEYS[2], '')  -- needs no memory, see streams/redis/scripts.py
if #fields > 0 then
  redis.call('HSET', KEYS[2], unpack(fields))
end
return reply
