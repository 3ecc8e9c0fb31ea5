-- A publisher comes, or comes back, under the next incarnation of its name.
--
-- KEYS  1 writers (hash)  2 lines (stream)
-- ARGV  1 name
--       2 token    random: this very call again has the same one
--       3 above    the incarnation is above this one, which somebody has seen
--       4 host     as JSON text
--       5 news channel
--
-- Replies
--   {'entered', incarnation, number of the line}   by this call, or by a former one whose answer was lost
--   {'sealed'}                                     the space takes no more
--   {'resting'}                                    it gets other streams right now: try again

-- include: streamlease.streams.epochs/writer

local it = read_writer(KEYS[1], ARGV[1])
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
local inc = math.max(it and it.inc or 0, tonumber(ARGV[3])) + 1
local shown = string.format('%.0f', inc)
local text = '{"k":"enter","name":"' .. ARGV[1] .. '","inc":' .. shown .. ',"host":' .. ARGV[4] .. '}'
local number = write_line(KEYS[1], KEYS[2], text, ARGV[5])
if not redis.call('HGET', KEYS[1], '!since') then
  redis.call('HSET', KEYS[1], '!since', now_ms())
end
write_writer(KEYS[1], ARGV[1], {inc = inc, token = ARGV[2], seq = 0, line = number, seen = now_ms(), state = 'here'})
return {'entered', inc, number}
