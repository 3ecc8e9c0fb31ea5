-- Bring a stream into being, or let one that waits begin. Lives go pending -> open -> sealed, never back; in a
-- space with epochs pending -> epochs -> sealed: then nobody but a keeper writes into it.
--
-- KEYS  1 meta (hash)
-- ARGV  1 'open'      make it open; one that is pending becomes open
--         'epochs'    make it one of a space with epochs; one that was made open before there was this state
--                     becomes it
--         'pending'   make it pending: it takes appends only later
--         'begin'     a pending one becomes open; nothing is made, for it may have been dropped meanwhile
--         'begin_epochs'   the same in a space with epochs
--
-- Replies
--   {'opened'}                    made, or begun, or its state is another one now
--   {'exists', next offset, state}
--   {'unknown'}                   'begin', 'begin_epochs': there is no such stream

local wanted = ARGV[1]
local begins = wanted == 'begin' or wanted == 'begin_epochs'
if wanted ~= 'open' and wanted ~= 'epochs' and wanted ~= 'pending' and not begins then
  return redis.error_reply("ERR open: wanted state must be 'open', 'epochs', 'pending', 'begin' or 'begin_epochs'")
end
local meta = redis.call('HMGET', KEYS[1], 'next', 'state')
if meta[1] then
  redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
  if (meta[2] == 'pending' and wanted ~= 'pending') or (meta[2] == 'open' and wanted == 'epochs') then
    redis.call('HSET', KEYS[1], 'state', (wanted == 'epochs' or wanted == 'begin_epochs') and 'epochs' or 'open')
    return {'opened'}
  end
  -- A write, so that WAIT or WAITAOF behind a repetition covers the first attempt.
  redis.call('HSET', KEYS[1], 'state', meta[2])
  return {'exists', tonumber(meta[1]), meta[2]}
end
if begins then
  return {'unknown'}
end
redis.call('HSET', KEYS[1], 'next', '0', 'state', wanted, 'floor', '0', 'last_append', '0', 'bytes', '0')
return {'opened'}
