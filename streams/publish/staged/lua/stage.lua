-- Stage one entry for a stream: the next one of a staged key, which so has no hole whatever was refused before.
--
-- KEYS  1 staged (stream; an id is <index>-<messages>)
-- ARGV  1 index     1, 2, 3, ... of this entry in the key
--       2 messages  how many the entry holds
--       3 expiry    of the key, in seconds
--       4... field, value   of the entry
--
-- Replies
--   {'staged'}           it is there, by this call or by a former one whose answer was lost
--   {'gap', entries}     only so many are there: one before it was refused, or Redis lost some

local there = redis.call('XLEN', KEYS[1])
local index = tonumber(ARGV[1])
if there >= index then
  return {'staged'}
end
if there ~= index - 1 then
  return {'gap', there}
end
redis.call('XADD', KEYS[1], ARGV[1] .. '-' .. ARGV[2], unpack(ARGV, 4))
if index == 1 then
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
return {'staged'}
