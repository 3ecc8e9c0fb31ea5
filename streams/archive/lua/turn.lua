-- Take a turn at the archive of a space, go on with it, wait for it, or give it up.
--
-- KEYS  1 turn (hash)
-- ARGV  1 whose  2 milliseconds after which it ends by itself; 0: give it up
--       3 '1': who has it is to hear that somebody waits
--
-- Replies
--   {'taken'}             it is theirs for so long from now on
--   {'wanted'}            the same, and somebody waits for it
--   {'given'}             it is not theirs any more
--   {'other'}             somebody else has it

local ms = tonumber(ARGV[2])
if not ms or ms < 0 then
  return redis.error_reply('ERR turn: the time must be a number of milliseconds')
end
local whose = redis.call('HGET', KEYS[1], 'whose')
if whose and whose ~= ARGV[1] then
  if ARGV[3] == '1' then
    redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
    redis.call('HSET', KEYS[1], 'wanted', 1)
  end
  return {'other'}
end
if ms == 0 then
  redis.call('DEL', KEYS[1])
  return {'given'}
end
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'whose', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ms)
return {redis.call('HGET', KEYS[1], 'wanted') and 'wanted' or 'taken'}
