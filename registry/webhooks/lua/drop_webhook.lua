-- Delete one webhook.
--
-- KEYS  1 subscriptions, 2 standings, 3 fence: see claim_webhooks.lua
-- ARGV  1 OWNER NUL ID
--
-- Replies: 1, or 0 if there was none

redis.call('HDEL', KEYS[2], ARGV[1])
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('HINCRBY', KEYS[3], 'version', 1)
return 1
