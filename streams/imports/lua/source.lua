-- Begin or go on with a source: what it was, and how far it is.
--
-- KEYS  1 state of the source (hash)
-- ARGV  1 identity as JSON; kept if nothing was published yet of what was there before
--       2 JSON object: space -> generation with which the space was born, of all spaces
--
-- Replies
--   {identity kept, position done or '', '1' if complete else ''}
--
-- If a space that the source knew was created anew since, position and completeness are forgotten: the
-- messages are gone, and the streams of the new space know nothing of the source.

local state = redis.call('HMGET', KEYS[1], 'identity', 'done', 'complete', 'born', 'begun')
if not state[5] then
  redis.call('HSET', KEYS[1], 'identity', ARGV[1], 'born', ARGV[2])
  return {ARGV[1], '', ''}
end
local before = cjson.decode(state[4])
local now = cjson.decode(ARGV[2])
for space, born in pairs(before) do
  if now[space] ~= born then
    redis.call('HDEL', KEYS[1], 'done', 'complete')
    redis.call('HSET', KEYS[1], 'born', ARGV[2])
    return {state[1], '', ''}
  end
end
return {state[1], state[2] or '', state[3] or ''}
