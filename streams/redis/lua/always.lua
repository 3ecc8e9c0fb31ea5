-- Run one small command that Redis refused because it is out of memory: see streams/redis/scripts.py.
-- KEYS  1 the key of the command
-- ARGV  1 name of the command: XADD, HINCRBY, SADD, or a SET that replaces; from 2 on, what follows its key
--
-- Replies: that of the command

local unasked = {XADD = {'XTRIM', 'MINID', '0'}, HINCRBY = {'HDEL', ''}, SADD = {'SREM', ''}, SET = {'PEXPIRE', '1'}}
local first = unasked[ARGV[1]]
if not first then
  return redis.error_reply('ERR always: it does not run ' .. ARGV[1])
end
redis.call(first[1], KEYS[1], unpack(first, 2))
return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
