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
--   {'appended', first offset, append time, messages}
--   {'duplicate', first offset, append time}   this sequence is there already
--   {'old', last sequence}  {'gap', last sequence, or -1}  {'mismatch', messages}
--   {'fenced', incarnation}        a later incarnation was there
--   {'missing', key, entries}      key number 1, 2, ... is not what it must be, it has so many entries: Redis lost some
--                                  of it, or it expired
--   {'schema', fingerprint, or ''} {'foreign', entry id} {'sealed'} {'pending'} {'unknown'}   as append.lua
--
-- The rules for the log, its meta and its publishers are those of append.lua.

-- include: streamlease.streams.log/log_end
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
if record then
  local was, seq, first, had, at = string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%d+)')
  if incarnation < tonumber(was) then
    return {'fenced', tonumber(was)}
  end
  if incarnation == tonumber(was) then
    last = tonumber(seq)
    if sequence == last and tonumber(had) ~= total then
      return {'mismatch', tonumber(had)}
    end
    if sequence == last then
      -- A write, so that WAIT or WAITAOF behind a repetition covers the append of the former connection.
      redis.call('HSET', KEYS[3], ARGV[1], record)
      return {'duplicate', tonumber(first), tonumber(at)}
    end
    if sequence < last then
      return {'old', last}
    end
  end
end
if sequence ~= last + 1 then
  return {'gap', last}
end
local refused = takes_nothing(meta)
if refused then
  return refused
end

local entries = {}
for key = 1, #KEYS - 5 do
  local named = tonumber(ARGV[5 + 2 * key])
  local written = redis.call('XRANGE', KEYS[5 + key], '-', '+')
  local messages = 0
  for j = 1, math.min(named, #written) do
    local index, count = string.match(written[j][1], '^(%d+)%-(%d+)$')
    if tonumber(index) ~= j then
      return {'missing', key, j - 1}
    end
    messages = messages + tonumber(count)
    entries[#entries + 1] = {tonumber(count), written[j][2]}
    local fields = written[j][2]
    refused = refused or other_schema(meta, fields[1], fields[2])
  end
  if #written ~= named or messages ~= tonumber(ARGV[6 + 2 * key]) then
    return {'missing', key, #written}
  end
end
refused = refused or foreign(meta, KEYS[4])
if refused then
  return refused
end

local now = append_time(meta, redis.call('TIME'))
local first = tonumber(meta[1])
local next = first
local size = tonumber(meta[4]) or 0
local stamp = ''
for i = 1, #entries do
  -- Each entry is strictly later than the one before: a time names one point of the log.
  stamp = string.format('%.0f', now + i - 1)
  local count, fields = entries[i][1], entries[i][2]
  fields[#fields + 1] = 'x'
  fields[#fields + 1] = ARGV[5]
  fields[#fields + 1] = 'w'
  fields[#fields + 1] = ARGV[6]
  redis.call('XADD', KEYS[4], string.format('%.0f-%.0f', next + count - 1, count), 'a', stamp, unpack(fields))
  next = next + count
  size = size + 1 + #stamp
  for j = 1, #fields do
    size = size + #fields[j]
  end
end
local after = string.format('%.0f', next)
redis.call('HSET', KEYS[2], 'next', after, 'last_append', stamp, 'bytes', string.format('%.0f', size))
local what = string.format('%.0f %.0f %.0f %.0f %s', incarnation, sequence, first, total, stamp)
redis.call('HSET', KEYS[3], ARGV[1], what)
redis.call('HINCRBY', KEYS[5], ARGV[5] .. ' ' .. ARGV[6], total)
redis.call('PUBLISH', ARGV[4], after)
return {'appended', first, now, total}
