-- Who does what a client named by a key of its own, and what came of it.
--
-- KEYS  1 the record (hash: owner, until (ms), print, began, answer)
-- ARGV  1 act: 'claim', 'settle' or 'let_go'
--       2 owner, a random token
--       3 claim: fingerprint of what is to be done; settle: the answer
--       4 claim: for how many ms the owner has it; settle: for how many ms the answer is kept
--       5 claim: for how many ms the record is kept
--       6 claim: the time of the request, in microseconds since 1970
--
-- Replies
--   {'mine', 0 or 1, began}   the owner is to do it; 1: somebody else had begun, and was silent for too long, or
--                      does not know what came of it; began: the time of the first request
--   {'wait', ms}       somebody else is doing it
--   {'answer', text}   it was done
--   {'other'}          the key was used for something else
--   {'kept'}, {'gone'} settle: whether the owner still had it
--   {'left'}           let_go

local record = redis.call('HMGET', KEYS[1], 'owner', 'until', 'print', 'answer', 'began')
if ARGV[1] == 'claim' then
  local clock = redis.call('TIME')
  local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
  if record[3] and record[3] ~= ARGV[3] then
    return {'other'}
  end
  if record[4] then
    return {'answer', record[4]}
  end
  if record[1] and record[1] ~= ARGV[2] and tonumber(record[2]) > now then
    return {'wait', tonumber(record[2]) - now}
  end
  local began = record[5] or ARGV[6]
  redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'until', string.format('%.0f', now + tonumber(ARGV[4])), 'print', ARGV[3],
    'began', began)
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  return {'mine', record[1] and record[1] ~= ARGV[2] and 1 or 0, began}
end
local mine = record[1] == ARGV[2]
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
if ARGV[1] == 'settle' then
  if not mine then
    return {'gone'}
  end
  redis.call('HSET', KEYS[1], 'answer', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  return {'kept'}
end
if mine then
  redis.call('HSET', KEYS[1], 'until', '0')
end
return {'left'}
