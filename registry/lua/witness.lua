-- Somebody has seen a higher term than the record knows: whoever stands in the record was followed by others.
-- KEYS[1] leadership record
-- ARGV[1] the term that was seen
-- Replies: 1 the record has that term now and nobody leads; 0 the record knew
local term = tonumber(redis.call('HGET', KEYS[1], 'term') or '0')
if term >= tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'term', ARGV[1], 'host', '', 'mailbox', '', 'renewed_at', '0')
return 1
