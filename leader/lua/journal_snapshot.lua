-- Replace the snapshot and drop the journal entries that it contains, if the term is still the leader's and the
-- journal ends where the leader knows.
-- KEYS[1] leadership record  KEYS[2] journal  KEYS[3] snapshot (hash: id, state, t, n)
-- ARGV[1] host  ARGV[2] term  ARGV[3] id of the last journal entry in the snapshot  ARGV[4] state (JSON)
-- ARGV[5] how many entries to keep, at least the newest  ARGV[6] number in the term of the last commit in it
-- ARGV[7] '1': put an empty entry behind the rest, so that the journal does not end where it ended before
-- Replies: {1, id of the newest entry}; {0, term} another term or host stands there: stop;
--          {2, entry id} the journal ends here and not where the leader knows: its tail was lost
local held = redis.call('HMGET', KEYS[1], 'term', 'host')
if held[1] ~= ARGV[2] or held[2] ~= ARGV[1] then
  return {0, held[1] or '0'}
end
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local last = newest and newest[1] or '0-0'
if last ~= ARGV[3] then
  return {2, last}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
if ARGV[7] == '1' then
  last = redis.call('XADD', KEYS[2], '*', 't', ARGV[2], 'n', ARGV[6], 'r', '[]')
end
redis.call('HSET', KEYS[3], 'id', last, 'state', ARGV[4], 't', ARGV[2], 'n', ARGV[6])
-- Without an entry at its end the journal would look as if its tail were lost.
redis.call('XTRIM', KEYS[2], 'MAXLEN', math.max(1, tonumber(ARGV[5])))
return {1, last}
