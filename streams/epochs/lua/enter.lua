-- A publisher comes, or comes back, under an incarnation that its name never had.
--
-- KEYS  1 writers (hash)  2 lines (stream)  3 state (hash)
-- ARGV  1 name
--       2 token    random: this very call again has the same one
--       3 above    the incarnation is above this one, which somebody has seen
--       4 host     as JSON text
--       5 news channel
--       6 leap     by how much incarnations rise if Redis may have lost some that were issued
--
-- Replies
--   {'entered', incarnation, number of the line}   by this call, or by a former one whose answer was lost
--   {'sealed'}                                     the space takes no more
--   {'resting'}                                    it gets other streams right now: try again
--   {'spent', incarnation}                         there is no number above this one

-- include: streamlease.streams.epochs/writer
-- include: streamlease.streams.redis/lineage

local it = read_writer(KEYS[1], ARGV[1])
if it then
  -- Who comes back may complete what fills the memory; a name that is new is refused then.
  redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
end
if it and it.token == ARGV[2] then
  -- A write, so that WAIT or WAITAOF behind a repetition covers the first call.
  write_writer(KEYS[1], ARGV[1], it)
  return {'entered', it.inc, it.line}
end
if redis.call('HGET', KEYS[1], '!sealed') then
  return {'sealed'}
end
local resting = redis.call('HGET', KEYS[1], '!resting')
if resting and tonumber(resting) > tonumber(now_ms()) then
  return {'resting'}
end
-- Incarnations are issued above the floor of their lineage of the data, which is far above all of the one before: also
-- above those that were lost with it (decision 403).
local known = redis.call('HMGET', KEYS[1], '!lineage', '!floor')
local floor = tonumber(known[2] or 0)
local inc = math.max(it and it.inc or 0, floor)
local above = tonumber(ARGV[3])
local lineage, promoted = lineage_here()
local other = lineage ~= '' and (known[1] and known[1] ~= lineage or not known[1] and promoted)
if other or above > inc then
  floor = math.max(floor, above)
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) ~= '!' then
      floor = math.max(floor, tonumber(string.match(all[i + 1], '^%d+')))
    end
  end
  floor = floor + tonumber(ARGV[6])
  inc = floor
end
-- Staged logs count in 2^20 times an incarnation, which Lua must count exactly.
if inc + 1 >= 2 ^ 33 then
  return {'spent', inc}
end
inc = inc + 1
local shown = string.format('%.0f', inc)
local text = '{"k":"enter","name":"' .. ARGV[1] .. '","inc":' .. shown .. ',"host":' .. ARGV[4] .. '}'
local number = write_line(KEYS[1], KEYS[2], text, ARGV[5])
redis.call('HSET', KEYS[1], '!floor', string.format('%.0f', floor))
if lineage ~= '' then
  redis.call('HSET', KEYS[1], '!lineage', lineage)
  redis.call('HSET', KEYS[3], 'lineage', lineage)
end
if not redis.call('HGET', KEYS[1], '!since') then
  redis.call('HSET', KEYS[1], '!since', now_ms())
end
write_writer(KEYS[1], ARGV[1], {inc = inc, token = ARGV[2], seq = 0, line = number, seen = now_ms(), state = 'here'})
return {'entered', inc, number}
