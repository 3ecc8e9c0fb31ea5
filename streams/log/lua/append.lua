-- Append one entry of one or many messages to a stream.
--
-- KEYS  1 meta (hash)  2 publishers (hash)  3 log (stream)
-- ARGV  1 publisher id      one that begins with '~' is forgotten after a day of silence
--       2 incarnation       a higher one fences the lower ones
--       3 sequence          0, 1, 2, ... of this publisher and incarnation in this stream
--       4 count             how many messages the entry holds, at least 1
--       5 gaps              '1': the sequence may leap forward; '0': it goes up by one; 'I S' or '-': it may
--                           leap forward, and so may the incarnation, from just I and S, or from nothing
--       6 news channel
--       7 known next        the publisher had an answer that the stream was written up to here. A lower one
--                           shows that Redis lost it: those offsets are left out, and never used again
--       8... field, value   of the entry; the field 'a' (append time) is added here. In a space with a
--                           schema the first field is 's', the fingerprint of the schema
--
-- Replies
--   {'appended',  first offset, append time in microseconds}
--   {'duplicate', first offset, append time}    this very sequence was the last one appended
--   {'old',       last sequence}                a sequence below the last one
--   {'gap',       last sequence, or -1}         a sequence that leaves one out
--   {'moved',     'I S' or '-'}                 the incarnation and sequence there are not those of ARGV 5
--   {'mismatch',  count of the original}        the last sequence again, with another count
--   {'fenced',    current incarnation}          a higher incarnation was here
--   {'schema', fingerprint, or ''}              the stream takes another schema, or none
--   {'foreign', entry id}                       somebody else put that entry behind the end of the log
--   {'sealed'}                                  the stream takes no more
--   {'pending'}                                 it takes nothing before its predecessors are sealed
--   {'unknown'}                                 there is no such stream

-- include: streamlease.streams.log/log_end

local meta = redis.call('HMGET', KEYS[1], 'next', 'state', 'last_append', 'bytes', 'schema')
if not meta[1] then
  return {'unknown'}
end

local incarnation = tonumber(ARGV[2])
local sequence = tonumber(ARGV[3])
local count = tonumber(ARGV[4])
if not incarnation or not sequence or not count or count < 1 then
  return redis.error_reply('ERR append: incarnation, sequence and count must be numbers, count at least 1')
end

local last = -1
local record = redis.call('HGET', KEYS[2], ARGV[1])
if record then
  local was, seq, first, many, at = string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%d+)')
  was = tonumber(was)
  if incarnation < was then
    return {'fenced', was}
  end
  if incarnation == was then
    last = tonumber(seq)
    if sequence == last then
      if tonumber(many) ~= count then
        return {'mismatch', tonumber(many)}
      end
      -- A write, so that WAIT or WAITAOF behind a repetition covers the append of the former connection.
      redis.call('HSET', KEYS[2], ARGV[1], record)
      return {'duplicate', tonumber(first), tonumber(at)}
    end
    if sequence < last then
      return {'old', last}
    end
  end
end
if ARGV[5] == '0' then
  if sequence ~= last + 1 then
    return {'gap', last}
  end
elseif ARGV[5] ~= '1' then
  local there = record and string.match(record, '^%d+ %d+') or '-'
  if there ~= ARGV[5] then
    return {'moved', there}
  end
end
local refused = takes_nothing(meta) or other_schema(meta, ARGV[8], ARGV[9]) or foreign(meta)
if refused then
  return refused
end

local now = append_time(meta)
local stamp = string.format('%.0f', now)
local first = math.max(tonumber(meta[1]), tonumber(ARGV[7]) or 0)
local after = string.format('%.0f', first + count)

-- Publishers that nobody closed: looked for at every 256th newcomer, once there are many.
local silent = {}
if not record then
  local known = redis.call('HLEN', KEYS[2])
  if known >= 1024 and known % 256 == 0 then
    local all = redis.call('HGETALL', KEYS[2])
    for i = 1, #all, 2 do
      if string.sub(all[i], 1, 1) == '~' then
        local at = tonumber(string.match(all[i + 1], '^%d+ %d+ %d+ %d+ (%d+)'))
        if now - at > 86400000000 then
          silent[#silent + 1] = all[i]
        end
      end
    end
  end
end

-- What the entry adds to the bytes of the stream: all its fields and values, with 'a' and its time.
local size = (tonumber(meta[4]) or 0) + 1 + #stamp
for i = 8, #ARGV do
  size = size + #ARGV[i]
end

-- XADD first: it is what Redis refuses when memory is short, and then nothing was written.
local id = string.format('%.0f-%.0f', first + count - 1, count)
redis.call('XADD', KEYS[3], id, 'a', stamp, unpack(ARGV, 8))
redis.call('HSET', KEYS[1], 'next', after, 'last_append', stamp, 'bytes', string.format('%.0f', size))
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f %.0f %.0f %.0f %s', incarnation, sequence, first, count, stamp))
for i = 1, #silent do
  redis.call('HDEL', KEYS[2], silent[i])
end
redis.call('PUBLISH', ARGV[6], after)
return {'appended', first, now}
