-- Append all entries that were staged for a stream in some keys, at once, and remove these keys.
--
-- KEYS  1 meta (hash)  2 publishers (hash)  3 log (stream)
--       4... staged (streams; an id is <index>-<messages>): those of this part, and with part 0 those of all
--            other parts behind them
-- ARGV  1 publisher id
--       2 batch     number of the batch, 0, 1, 2, ...; it may leap forward
--       3 part      0, 1, 2, ... of this batch in this stream
--       4 news channel
--       5 tag       of what was decided about the batch: another decision has another one
--       6 keys      how many of the staged keys are of this part
--       7... entries, messages   that the decision names for each staged key
--
-- Replies
--   {'appended', first offset, messages}
--   {'duplicate'}                  this part, or a later one of this batch, is there already
--   {'other', messages}            so many of this batch are there, of another decision, which was lost
--   {'gap', last part, or -1}      the part before is not there
--   {'fenced', newest batch}       a later batch was there
--   {'missing', key, entries}      staged key number 1, 2, ... is not what was decided, it has so many entries:
--                                  Redis lost some of it, or it expired
--   {'schema', fingerprint, or ''} the stream takes another schema, or none
--   {'foreign', entry id}          somebody else put that entry behind the end of the log
--   {'sealed'}                     the stream takes no more
--   {'pending'}                    it takes nothing before its predecessors are sealed
--   {'unknown'}                    there is no such stream
--
-- Part 0 is only appended if the keys of all parts are complete. They are on one server, so what loses one of
-- them later, such as a failover, has lost the append before.
--
-- The rules for the log, its meta and its publishers are those of append.lua. The record of the publisher has
-- two words more: the tag, and how many messages of the batch are there.

-- include: streamlease.streams.log/log_end
-- include: streamlease.streams.publish.staged/staged_entries

local meta = redis.call('HMGET', KEYS[1], 'next', 'state', 'last_append', 'bytes', 'schema')
if not meta[1] then
  return {'unknown'}
end
local batch = tonumber(ARGV[2])
local part = tonumber(ARGV[3])
local last = -1
local before = 0
local record = redis.call('HGET', KEYS[2], ARGV[1])
if record then
  local was, seq = string.match(record, '^(%d+) (%d+) ')
  if batch < tonumber(was) then
    return {'fenced', tonumber(was)}
  end
  if batch == tonumber(was) then
    local tag, rows = string.match(record, ' (%S+) (%d+)$')
    if tag ~= ARGV[5] then
      return {'other', tonumber(rows)}
    end
    last = tonumber(seq)
    before = tonumber(rows)
    if part <= last then
      redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
      -- A write, so that WAIT or WAITAOF behind a repetition covers the append of the former connection.
      redis.call('HSET', KEYS[2], ARGV[1], record)
      return {'duplicate'}
    end
  end
end
if part ~= last + 1 then
  return {'gap', last}
end
local refused = takes_nothing(meta)
if refused then
  return refused
end

local own = tonumber(ARGV[6])
local entries = {}
local total = 0
for key = 1, #KEYS - 3 do
  local named = ARGV[5 + 2 * key]
  local there = redis.call('XLEN', KEYS[3 + key])
  if there ~= tonumber(named) then
    return {'missing', key, there}
  end
  if key <= own then
    local missing = read_staged(KEYS[3 + key], key, named, ARGV[6 + 2 * key], entries)
    if missing then
      return missing
    end
    total = total + tonumber(ARGV[6 + 2 * key])
  end
end
for i = 1, #entries do
  local fields = entries[i][2]
  refused = refused or other_schema(meta, fields[1], fields[2])
end
refused = refused or foreign(meta, KEYS[3])
if refused then
  return refused
end

redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
local first, stamp = append_entries(meta, KEYS[1], KEYS[3], entries, {}, ARGV[4])
local what = string.format('%.0f %.0f %.0f %.0f %s', batch, part, first, total, stamp)
redis.call('HSET', KEYS[2], ARGV[1], what .. string.format(' %s %.0f', ARGV[5], before + total))
-- Not all at once: `unpack` knows some 8,000 values at most.
for from = 4, 3 + own, 1000 do
  redis.call('UNLINK', unpack(KEYS, from, math.min(from + 999, 3 + own)))
end
return {'appended', first, total}
