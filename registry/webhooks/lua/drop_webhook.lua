-- Delete one webhook.
--
-- KEYS  1 subscriptions, 2 standings, 3 fence: see claim_webhooks.lua
--       4 owners: see put_webhook.lua
-- ARGV  1 OWNER NUL ID
--       2 OWNER
--
-- Replies: 1, or 0 if there was none

redis.call('HDEL', KEYS[2], ARGV[1])
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return 0
end
if redis.call('HINCRBY', KEYS[4], ARGV[2], -1) <= 0 then
  redis.call('HDEL', KEYS[4], ARGV[2])
end
redis.call('HINCRBY', KEYS[3], 'version', 1)
return 1
