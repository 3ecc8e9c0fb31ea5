-- Give a publisher up, whose process is silent or whom an operator wants away.
--
-- KEYS  1 writers (hash)  2 lines (stream)
-- ARGV  1 name
--       2 incarnation   that is given up
--       3 seen          its last sign of life as it was read; '': whatever it is
--       4 news channel
--       5 the line as JSON
--
-- Replies
--   {'lost', number}         by this call
--   {'other', state}         it is not there any more, or another incarnation is
--   {'alive', seen}          it has shown since that it lives

-- include: streamlease.streams.epochs/writer

local it = read_writer(KEYS[1], ARGV[1])
if not it or it.inc ~= tonumber(ARGV[2]) or it.state ~= 'here' then
  return {'other', it and it.state or ''}
end
if ARGV[3] ~= '' and it.seen ~= ARGV[3] then
  return {'alive', it.seen}
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
it.line = write_line(KEYS[1], KEYS[2], ARGV[5], ARGV[4])
it.state = 'lost'
write_writer(KEYS[1], ARGV[1], it)
return {'lost', it.line}
