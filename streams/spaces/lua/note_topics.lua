-- Note topics that are published to, as far as their spaces have room for more.
-- KEYS[1] topics (hash: SPACE/TOPIC -> row)  KEYS[2] their order (zset of the same names)  KEYS[3] changes
-- KEYS[4] definitions of spaces (hash)
-- ARGV[1] channel of the catalog  ARGV[2] how many topics of a space are noted  ARGV[3...] space, topic, row, ...
-- Replies: how many are new
-- include: streamlease.streams.catalog/tell
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
local noted, room = 0, {}
for i = 3, #ARGV, 3 do
  local space, name = ARGV[i], ARGV[i] .. '/' .. ARGV[i + 1]
  if not room[space] then
    local count = redis.call('ZLEXCOUNT', KEYS[2], '[' .. space .. '/', '(' .. space .. '0')
    room[space] = redis.call('HGET', KEYS[4], space) and tonumber(ARGV[2]) - count or 0
  end
  if room[space] > 0 and not redis.call('HGET', KEYS[1], name) then
    redis.call('HSET', KEYS[1], name, ARGV[i + 2])
    redis.call('ZADD', KEYS[2], 0, name)
    tell(KEYS[3], ARGV[1], 'topics', name, '', ARGV[i + 2])
    room[space] = room[space] - 1
    noted = noted + 1
  end
end
return noted
