-- Make or change one webhook, if it still is what its writer has seen.
--
-- KEYS  1 subscriptions, 2 standings, 3 fence: see claim_webhooks.lua
--       4 owners (hash: OWNER -> how many webhooks it has in this slot)
-- ARGV  1 OWNER NUL ID
--       2 the value in KEYS[1] that was seen; empty: there was none
--       3 the value in KEYS[2] that was seen; empty: whatever it is by now
--       4 new value for KEYS[1]
--       5 new value for KEYS[2]; empty: it stays
--       6 most webhooks of a slot
--       7 OWNER
--
-- Replies: {'put'}; {'changed'}: it is another one by now; {'full'}: the slot has no room for one more

local now = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if now ~= ARGV[2] or (ARGV[3] ~= '' and redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[3]) then
  return {'changed'}
end
if now == '' and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[6]) then
  return {'full'}
end
if now == '' then
  redis.call('HINCRBY', KEYS[4], ARGV[7], 1)
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[5])
end
redis.call('HINCRBY', KEYS[3], 'version', 1)
return {'put'}
