-- Tell a stream of those that it follows, which are dropped: how new their newest message was, where they ended.
--
-- KEYS  1 meta (hash)
-- ARGV  1 append time of that message, in microseconds; 0 if there was none
--       2 where they ended: GENERATION.SHARD:END, with blanks between them
--       3 how many ends are kept, the newest
--
-- Replies
--   {'told'}
--   {'unknown'}    there is no such stream

local meta = redis.call('HMGET', KEYS[1], 'next', 'trimmed_at', 'ends')
if not meta[1] then
  return {'unknown'}
end
local ends, known = {}, {}
for one in string.gmatch((meta[3] or '') .. ' ' .. ARGV[2], '%S+') do
  if not known[one] then
    known[one] = true
    ends[#ends + 1] = one
  end
end
local moment = ARGV[1]
if (tonumber(meta[2]) or 0) >= tonumber(moment) then
  moment = meta[2] or '0'
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
if moment ~= '0' then
  redis.call('HSET', KEYS[1], 'trimmed_at', moment)
end
if #ends > 0 then
  local first = math.max(1, #ends - tonumber(ARGV[3]) + 1)
  redis.call('HSET', KEYS[1], 'ends', table.concat(ends, ' ', first))
end
return {'told'}
