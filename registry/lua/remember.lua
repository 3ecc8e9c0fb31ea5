-- Remember a word under a name for a while, in a hash that stays small.
-- KEYS[1] hash: name -> "TIME WORD", the time in seconds
-- ARGV[1] name  ARGV[2] word  ARGV[3] for how many seconds
-- Replies: the word that is remembered under the name: the one of ARGV[2], unless another one came first
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
local now = tonumber(redis.call('TIME')[1])
local keep = tonumber(ARGV[3])
local function word_of(text)
  local at, word = string.match(text or '', '^(%d+) (.*)$')
  return at and now - tonumber(at) < keep and word
end
local known = word_of(redis.call('HGET', KEYS[1], ARGV[1]))
if known and known ~= ARGV[2] then
  return known
end
if not known and redis.call('HLEN', KEYS[1]) >= 64 then
  local all = redis.call('HGETALL', KEYS[1])
  for place = 1, #all, 2 do
    if not word_of(all[place + 1]) then
      redis.call('HDEL', KEYS[1], all[place])
    end
  end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s', now, ARGV[2]))
redis.call('EXPIRE', KEYS[1], ARGV[3])
return ARGV[2]
