-- Remove all that is kept of a shared subscription, unless somebody wanted it meanwhile.
-- KEYS[1] progress (hash)  KEYS[2] counter of sessions  KEYS[3..] everything else of it
-- ARGV[1] @joined of the progress and ARGV[2] the counter, as they were read; ARGV[3] 1: remove in any case
-- Replies: 1 removed; 0 it was declared, or a session came, since they were read: nothing was changed
local joined = redis.call('HGET', KEYS[1], '@joined') or ''
local arrivals = redis.call('GET', KEYS[2]) or ''
if ARGV[3] ~= '1' and (joined ~= ARGV[1] or arrivals ~= ARGV[2]) then
  return 0
end
redis.call('UNLINK', unpack(KEYS))
return 1
