-- A staged log follows its stream: what stage_many.lua and stage_batch.lua do alike. They include this file.
--
-- KEYS  none: both metas are handed in
-- ARGV  none
--
-- Replies: none

-- Bring the meta of a staged log into being, or up to date; whether its stream is there.
local function follow(stream_meta, open_meta)
  local stream = redis.call('HMGET', stream_meta, 'state', 'schema')
  if not stream[1] then
    return false
  end
  -- The staged log of a stream that only a keeper writes into is open to publishers.
  local state = stream[1] == 'epochs' and 'open' or stream[1]
  local open = redis.call('HMGET', open_meta, 'next', 'state', 'schema')
  if not open[1] then
    redis.call('HSET', open_meta, 'next', '0', 'floor', '0', 'last_append', '0', 'bytes', '0')
  end
  if open[2] ~= state then
    redis.call('HSET', open_meta, 'state', state)
  end
  if stream[2] and open[3] ~= stream[2] then
    redis.call('HSET', open_meta, 'schema', stream[2], 'schemas', redis.call('HGET', stream_meta, 'schemas') or '')
  end
  return true
end
