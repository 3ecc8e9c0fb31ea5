-- Somebody has seen a higher term than the record knows: whoever stands in the record was followed by others.
-- KEYS[1] leadership record  KEYS[2] declaration (string)
-- ARGV[1] the term that was seen
-- Replies: 1 the record has that term now and nobody leads; 0 the record knew, or there is neither a record nor a
--          declaration: what is forgotten gets no record again
local known = redis.call('HGET', KEYS[1], 'term')
if not known and redis.call('EXISTS', KEYS[2]) == 0 then
  return 0
end
if tonumber(known or '0') >= tonumber(ARGV[1]) then
  return 0
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], 'term', ARGV[1], 'host', '', 'mailbox', '', 'renewed_at', '0')
return 1
