-- Keep a member, and note what was handed to it; only for who serves it.
-- KEYS[1] member (hash, see registry/keys.py)
-- ARGV[1] the arrival by which it is served  ARGV[2] how long (ms) it lasts without a sign of life
-- ARGV[3] how many fields are given  ARGV[4...] these, each with its value, then fields that are to go
-- Replies: 1; 0: it is served by another arrival; -1: it is gone. Nothing was changed then
local known = redis.call('HGET', KEYS[1], 'arrival')
if known ~= ARGV[1] then
  return known and 0 or -1
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
local behind = 4 + 2 * tonumber(ARGV[3])
for place = 4, behind - 1, 2 do
  redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 1])
end
for place = behind, #ARGV do
  redis.call('HDEL', KEYS[1], ARGV[place])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
