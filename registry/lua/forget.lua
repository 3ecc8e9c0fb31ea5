-- Remove all that is kept of a shared subscription, unless somebody wanted it meanwhile.
-- KEYS[1] progress (hash)  KEYS[2] counter of sessions  KEYS[3..] everything else of it; but the last one is the
-- set of all subscriptions if ARGV[4] is not empty
-- ARGV[1] @joined of the progress and ARGV[2] the counter, as they were read; ARGV[3] 1: remove in any case
-- ARGV[4] the subscription, as it stands in the set; empty on a cluster, where the set lies in another slot
-- Replies: 1 removed; 0 it was declared, or a session came, since they were read: nothing was changed
local joined = redis.call('HGET', KEYS[1], '@joined') or ''
local arrivals = redis.call('GET', KEYS[2]) or ''
if ARGV[3] ~= '1' and (joined ~= ARGV[1] or arrivals ~= ARGV[2]) then
  return 0
end
local last = #KEYS
if ARGV[4] ~= '' then
  redis.call('SREM', KEYS[last], ARGV[4])
  last = last - 1
end
redis.call('UNLINK', unpack(KEYS, 1, last))
redis.call('PUBLISH', 'sl:{groups}:news', '')
return 1
