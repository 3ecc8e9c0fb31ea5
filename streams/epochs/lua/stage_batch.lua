-- Stage all entries of some keys that tasks of a sink have written for one stream: its rows of an epoch, or a part of
-- these. The keys stay.
--
-- KEYS  1 meta of the stream (hash), and of its staged log: 2 meta (hash)  3 publishers (hash)  4 log (stream)
--       5 messages by epoch (hash)
--       6... keys of tasks (streams; an id is <index>-<messages>)
-- ARGV  1 publisher id
--       2 incarnation
--       3 sequence  0, 1, 2, ... of what this incarnation stages for this stream
--       4 news channel
--       5 epoch
--       6 name and incarnation of who stages it
--       7... entries, messages   that must be in each of the keys
--
-- Replies
--   {'appended', first offset, append time of the last entry, messages}
--   {'duplicate', first offset, the same time}   this sequence is there already
--   {'old', last sequence}  {'gap', last sequence, or -1}  {'mismatch', messages}
--   {'fenced', incarnation}        a later incarnation was there
--   {'missing', key, entries}      key number 1, 2, ... is not what it must be, it has so many entries: Redis lost some
--                                  of it, or it expired
--   {'schema', fingerprint, or ''} {'foreign', entry id} {'sealed'} {'pending'} {'unknown'}   as append.lua
--
-- The rules for the log, its meta and its publishers are those of append.lua.

-- include: streamlease.streams.log/log_end
-- include: streamlease.streams.publish.staged/staged_entries
-- include: streamlease.streams.epochs/follow

if not follow(KEYS[1], KEYS[2]) then
  return {'unknown'}
end
local meta = redis.call('HMGET', KEYS[2], 'next', 'state', 'last_append', 'bytes', 'schema')
local incarnation = tonumber(ARGV[2])
local sequence = tonumber(ARGV[3])
local total = 0
for key = 1, #KEYS - 5 do
  total = total + tonumber(ARGV[6 + 2 * key])
end

local last = -1
local record = redis.call('HGET', KEYS[3], ARGV[1])
local was, seq, first, had, at = string.match(record or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)')
if was and incarnation < tonumber(was) then
  return {'fenced', tonumber(was)}
end
if was and incarnation == tonumber(was) then
  last = tonumber(seq)
end
if sequence < last then
  return {'old', last}
end
if sequence == last then
  if tonumber(had) ~= total then
    return {'mismatch', tonumber(had)}
  end
  -- A write, so that WAIT or WAITAOF behind a repetition covers the append of the former connection.
  redis.call('HSET', KEYS[3], ARGV[1], record)
  return {'duplicate', tonumber(first), tonumber(at)}
end
if sequence > last + 1 then
  return {'gap', last}
end
local entries = {}
local refused = takes_nothing(meta)
for key = 1, refused and 0 or #KEYS - 5 do
  local missing = read_staged(KEYS[5 + key], key, ARGV[5 + 2 * key], ARGV[6 + 2 * key], entries)
  if missing then
    return missing
  end
end
for i = 1, #entries do
  refused = refused or other_schema(meta, entries[i][2][1], entries[i][2][2])
end
refused = refused or foreign(meta, KEYS[4])
if refused then
  return refused
end

local begin, stamp = append_entries(meta, KEYS[2], KEYS[4], entries, {'x', ARGV[5], 'w', ARGV[6]}, ARGV[4])
redis.call('HSET', KEYS[3], ARGV[1], string.format('%.0f %.0f %.0f %.0f %s', incarnation, sequence, begin, total, stamp))
redis.call('HINCRBY', KEYS[5], ARGV[5] .. ' ' .. ARGV[6], total)
return {'appended', begin, tonumber(stamp), total}
