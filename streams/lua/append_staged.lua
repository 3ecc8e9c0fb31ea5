-- Append all entries that were staged for a stream in some keys, at once, and remove these keys.
--
-- KEYS  1 meta (hash)  2 publishers (hash)  3 log (stream)  4... staged (streams; an id is <index>-<messages>)
-- ARGV  1 publisher id
--       2 batch     number of the batch, 0, 1, 2, ...; it may leap forward
--       3 part      0, 1, 2, ... of this batch in this stream
--       4 news channel
--
-- Replies
--   {'appended', first offset, messages}
--   {'duplicate'}                  this part, or a later one of this batch, is there already
--   {'gap', last part, or -1}      the part before is not there
--   {'fenced', newest batch}       a later batch was there
--   {'missing'}                    nothing is staged: it was lost, or expired
--   {'schema', fingerprint, or ''} the stream takes another schema, or none
--   {'sealed'}                     the stream takes no more
--   {'pending'}                    it takes nothing before its predecessors are sealed
--   {'unknown'}                    there is no such stream
--
-- The rules for the log, its meta and its publishers are those of append.lua.

local meta = redis.call('HMGET', KEYS[1], 'next', 'state', 'last_append', 'bytes')
if not meta[1] then
  return {'unknown'}
end
local batch = tonumber(ARGV[2])
local part = tonumber(ARGV[3])
local last = -1
local record = redis.call('HGET', KEYS[2], ARGV[1])
if record then
  local was, seq = string.match(record, '^(%d+) (%d+) ')
  if batch < tonumber(was) then
    return {'fenced', tonumber(was)}
  end
  if batch == tonumber(was) then
    last = tonumber(seq)
    if part <= last then
      -- A write, so that WAIT or WAITAOF behind a repetition covers the append of the former connection.
      redis.call('HSET', KEYS[2], ARGV[1], record)
      return {'duplicate'}
    end
  end
end
if part ~= last + 1 then
  return {'gap', last}
end
if meta[2] == 'pending' then
  return {'pending'}
end
if meta[2] ~= 'open' then
  return {'sealed'}
end

local schema = redis.call('HGET', KEYS[1], 'schema') or ''
local entries = {}
local total = 0
for i = 4, #KEYS do
  local staged = redis.call('XRANGE', KEYS[i], '-', '+')
  if #staged == 0 then
    return {'missing'}
  end
  for j = 1, #staged do
    local fields = staged[j][2]
    if schema ~= (fields[1] == 's' and fields[2] or '') then
      return {'schema', schema}
    end
    local count = tonumber(string.match(staged[j][1], '%-(%d+)$'))
    entries[#entries + 1] = {count, fields}
    total = total + count
  end
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local newest = tonumber(meta[3]) or 0
if now <= newest then
  now = newest + 1
end
local first = tonumber(meta[1])
local next = first
local size = tonumber(meta[4]) or 0
local stamp = ''
for i = 1, #entries do
  -- Each entry is strictly later than the one before: a time names one point of the stream.
  stamp = string.format('%.0f', now + i - 1)
  local count, fields = entries[i][1], entries[i][2]
  redis.call('XADD', KEYS[3], string.format('%.0f-%.0f', next + count - 1, count), 'a', stamp, unpack(fields))
  next = next + count
  size = size + 1 + #stamp
  for j = 1, #fields do
    size = size + #fields[j]
  end
end
local after = string.format('%.0f', next)
redis.call('HSET', KEYS[1], 'next', after, 'last_append', stamp, 'bytes', string.format('%.0f', size))
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f %.0f %.0f %.0f %s', batch, part, first, total, stamp))
redis.call('UNLINK', unpack(KEYS, 4))
redis.call('PUBLISH', ARGV[4], after)
return {'appended', first, total}
