-- A publisher writes a line, or shows that it lives.
--
-- KEYS  1 writers (hash)  2 lines (stream)
-- ARGV  1 name
--       2 incarnation
--       3 token
--       4 sequence   1, 2, 3, ... of this incarnation; '0': no line, a sign of life
--       5 state      'here', or 'left' with its last line
--       6 news channel
--       7 the line as JSON
--
-- Replies
--   {'written', number}            by this call, or by a former one whose answer was lost
--   {'alive', last sequence}       to a sign of life
--   {'gap', last sequence}         a line before it is not there: Redis lost it
--   {'fenced', incarnation, state} another incarnation is there, or this one was given up

-- include: streamlease.streams.epochs/writer

local it = read_writer(KEYS[1], ARGV[1])
local inc = tonumber(ARGV[2])
if it and (it.inc > inc or it.inc == inc and it.token ~= ARGV[3]) then
  return {'fenced', it.inc, it.state}
end
if not it or it.inc < inc then
  return {'gap', -1}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
local seq = tonumber(ARGV[4])
if seq > 0 and seq == it.seq then
  -- A write, so that WAIT or WAITAOF behind a repetition covers the first call.
  write_writer(KEYS[1], ARGV[1], it)
  return {'written', it.line}
end
if it.state ~= 'here' then
  return {'fenced', it.inc, it.state}
end
it.seen = now_ms()
if seq == 0 then
  write_writer(KEYS[1], ARGV[1], it)
  return {'alive', it.seq}
end
if seq ~= it.seq + 1 then
  return {'gap', it.seq}
end
it.line = write_line(KEYS[1], KEYS[2], ARGV[7], ARGV[6])
it.seq = seq
it.state = ARGV[5]
write_writer(KEYS[1], ARGV[1], it)
return {'written', it.line}
