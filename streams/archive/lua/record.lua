-- Record which files the archive of a stream has, and with that how far Redis may be trimmed.
--
-- KEYS  1 meta (hash)  2 files (sorted set)  3 log (stream)
-- ARGV  1 term         of the archiver; a lower one than the last is refused
--       2 archived     what the caller believes is below `archived` now
--       3 upto         what is below it is in files, or retired, from now on; never lower than before
--       4 exists       the lowest offset that is in a file; never lower than before
--       5 retired      append time of the newest message that was retired, in microseconds
--       6 gone         how many files are replaced or retired, then those, as they stand here
--       then           for each new file the offset behind it, the append time of its last message in
--                      microseconds, and what is to stand here
--
-- Replies
--   {'recorded', archived, exists}
--   {'fenced', term}          an archiver with a higher term was here
--   {'moved', archived}       somebody else recorded meanwhile: look again
--   {'lost', next}            the log does not have the last message of the file that ends there: Redis lost it
--   {'unknown'}               there is no such stream

local meta = redis.call('HMGET', KEYS[1], 'next', 'archived', 'exists', 'archive_term', 'retired_at', 'merged')
if not meta[1] then
  return {'unknown'}
end
local number = {}
for i = 1, 6 do
  number[i] = tonumber(ARGV[i])
  if not number[i] then
    return redis.error_reply('ERR record: term, offsets, time and count must be numbers')
  end
end
local term, before, upto, exists, retired, gone = unpack(number)
if term < (tonumber(meta[4]) or 0) then
  return {'fenced', tonumber(meta[4])}
end
if before ~= (tonumber(meta[2]) or 0) then
  return {'moved', tonumber(meta[2]) or 0}
end
for i = 7, 6 + gone do
  if not redis.call('ZSCORE', KEYS[2], ARGV[i]) then
    return {'moved', before}
  end
end
-- What is not archived yet is in the log, unless it was merged; the entry with an offset has its append time.
for i = 7 + gone, #ARGV, 3 do
  local last = tonumber(ARGV[i]) - 1
  if last >= before and last >= (tonumber(meta[6]) or 0) then
    local entry = redis.call('XRANGE', KEYS[3], string.format('%.0f-0', last), '+', 'COUNT', 1)[1]
    local ends, count = string.match(entry and entry[1] or '', '^(%d+)-(%d+)$')
    local appended
    for f = 1, ends and #entry[2] or 0, 2 do
      if entry[2][f] == 'a' then
        appended = entry[2][f + 1]
      end
    end
    if not ends or tonumber(ends) - tonumber(count) >= last or tonumber(appended) ~= tonumber(ARGV[i + 1]) then
      return {'lost', last + 1}
    end
  end
end
upto = math.max(upto, before)
exists = math.max(exists, tonumber(meta[3]) or 0)
retired = math.max(retired, tonumber(meta[5]) or 0)

redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
for i = 7 + gone, #ARGV, 3 do
  redis.call('ZADD', KEYS[2], ARGV[i], ARGV[i + 2])
end
for i = 7, 6 + gone do
  redis.call('ZREM', KEYS[2], ARGV[i])
end
redis.call('HSET', KEYS[1], 'archived', string.format('%.0f', upto), 'exists', string.format('%.0f', exists),
  'archive_term', string.format('%.0f', term), 'retired_at', string.format('%.0f', retired))
return {'recorded', upto, exists}
